/* SPDX-License-Identifier: MIT
 * How far ALiBi lets queries see: keys so much farther than the nearest one that whatever queries
 * and keys hold, their weights are 0 in the type of the table. Walks over K and V leave them out.
 */
#ifndef FA_REACH_H
#define FA_REACH_H

#include "plan.h"

/* Of plan->reach; 0 where all keys are in reach. */
int64_t fa_reach_bytes(const fa_plan *plan);

/* Fill plan->reach[index]: of kv head index % kv_heads of sequence index / kv_heads. */
void fa_reach_fill(const fa_plan *plan, int64_t index);

#endif
