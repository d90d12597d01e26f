/* SPDX-License-Identifier: MIT
 * The vocabulary on arm64 Advanced SIMD: 4 floats or 2 doubles.
 */
#include <arm_neon.h>

#include "vec.h"

#if FA_REAL_BITS == 32
typedef float32x4_t vec;
typedef uint32x4_t vmask;
enum { LANES = 4 };
#define V(name) name##q_f32
#else
typedef float64x2_t vec;
typedef uint64x2_t vmask;
enum { LANES = 2 };
#define V(name) name##q_f64
#endif

FA_INLINE vec v_load(const real *p) { return V(vld1)(p); }
FA_INLINE void v_store(real *p, vec a) { V(vst1)(p, a); }
FA_INLINE vec v_loadu(const real *p) { return V(vld1)(p); }
FA_INLINE void v_storeu(real *p, vec a) { V(vst1)(p, a); }

/* Put together from two numbers: bytes stored one by one are long in coming back as a vector. */
FA_INLINE vec v_load_bytes(const void *p, int64_t n)
{
    const unsigned char *from = p;
    uint64_t half[2] = {0, 0};
    for (int64_t at = 0; at < n; ++at) half[at / 8] |= (uint64_t)from[at] << at % 8 * 8;
    const uint64x2_t bits = vcombine_u64(vcreate_u64(half[0]), vcreate_u64(half[1]));
    vec a;
    memcpy(&a, &bits, sizeof a);
    return a;
}
FA_INLINE void v_store_bytes(void *p, int64_t n, vec a) { memcpy(p, &a, (size_t)n); }

FA_INLINE vec v_add(vec a, vec b) { return V(vadd)(a, b); }
FA_INLINE vec v_sub(vec a, vec b) { return V(vsub)(a, b); }
FA_INLINE vec v_mul(vec a, vec b) { return V(vmul)(a, b); }
FA_INLINE vec v_div(vec a, vec b) { return V(vdiv)(a, b); }
FA_INLINE vec v_fma(vec a, vec b, vec c) { return V(vfma)(c, a, b); }
FA_INLINE vec v_abs(vec a) { return V(vabs)(a); }
FA_INLINE vmask v_gt(vec a, vec b) { return V(vcgt)(a, b); }
FA_INLINE vmask v_eq(vec a, vec b) { return V(vceq)(a, b); }
FA_INLINE vec v_select(vmask mask, vec a, vec b) { return V(vbsl)(mask, a, b); }
/* The machine's own maximum returns NaN when either operand is one; the vocabulary returns b. */
FA_INLINE vec v_max(vec a, vec b) { return v_select(v_gt(a, b), a, b); }
FA_INLINE vec v_min(vec a, vec b) { return v_select(v_gt(b, a), a, b); }

#define HAS_LIMIT 0
FA_INLINE vec v_swap(const int n, vec a)
{
#if FA_REAL_BITS == 32
    if (n == 1) return vrev64q_f32(a);
#endif
    (void)n;
    return V(vext)(a, a, LANES / 2);
}

FA_INLINE void v_zip(vec *a, vec *b)
{
    const vec x = *a;
    *a = V(vzip1)(x, *b);
    *b = V(vzip2)(x, *b);
}

#if FA_REAL_BITS == 32
FA_INLINE vec v_splat(real x) { return vdupq_n_f32(x); }
FA_INLINE int v_any(vmask mask) { return vmaxvq_u32(mask) != 0; }
FA_INLINE int v_all(vmask mask) { return vminvq_u32(mask) != 0; }
FA_INLINE vmask v_negative(vec a) { return vcltzq_s32(vreinterpretq_s32_f32(a)); }
FA_INLINE float v_greatest(vec a) { return vmaxvq_f32(a); }

FA_INLINE vec v_pow2(vec x, vec *n)
{
    vec biased = v_add(x, v_splat(POW2_MAGIC));
    *n = v_sub(biased, v_splat(POW2_MAGIC));
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(biased), MANTISSA_BITS));
}

FA_INLINE void v_transpose(vec r[LANES])
{
    float32x4_t a = vtrn1q_f32(r[0], r[1]), b = vtrn2q_f32(r[0], r[1]);
    float32x4_t c = vtrn1q_f32(r[2], r[3]), d = vtrn2q_f32(r[2], r[3]);
    r[0] = vcombine_f32(vget_low_f32(a), vget_low_f32(c));
    r[1] = vcombine_f32(vget_low_f32(b), vget_low_f32(d));
    r[2] = vcombine_f32(vget_high_f32(a), vget_high_f32(c));
    r[3] = vcombine_f32(vget_high_f32(b), vget_high_f32(d));
}

FA_INLINE vec v_repeat(const int n, const real *p)
{
    if (n == 4) return vld1q_f32(p);
    return n == 2 ? vcombine_f32(vld1_f32(p), vld1_f32(p)) : vld1q_dup_f32(p);
}

FA_INLINE vec v_stretch(const int n, const real *p)
{
    if (n == 4) return vld1q_dup_f32(p);
    if (n == 1) return vld1q_f32(p);
    const float32x2_t a = vld1_f32(p);
    return vcombine_f32(vdup_lane_f32(a, 0), vdup_lane_f32(a, 1));
}

FA_INLINE void v_regroup(const int n, vec *r)
{
    if (n == 1) v_transpose(r);
    if (n != 2) return;
    const vec a = r[0];
    r[0] = vcombine_f32(vget_low_f32(a), vget_low_f32(r[1]));
    r[1] = vcombine_f32(vget_high_f32(a), vget_high_f32(r[1]));
}

FA_INLINE vec v_sum_groups(const int n, vec *r)
{
    if (n == 1) return r[0];
    if (n == 2) return vpaddq_f32(r[0], r[1]);
    return vpaddq_f32(vpaddq_f32(r[0], r[1]), vpaddq_f32(r[2], r[3]));
}

FA_INLINE vec v_shift_bits(vec a)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(a), 1));
}
#else
FA_INLINE vec v_splat(real x) { return vdupq_n_f64(x); }
FA_INLINE int v_any(vmask mask) { return vmaxvq_u32(vreinterpretq_u32_u64(mask)) != 0; }
FA_INLINE int v_all(vmask mask) { return vminvq_u32(vreinterpretq_u32_u64(mask)) != 0; }
FA_INLINE vmask v_negative(vec a) { return vcltzq_s64(vreinterpretq_s64_f64(a)); }

FA_INLINE vec v_pow2(vec x, vec *n)
{
    vec biased = v_add(x, v_splat(POW2_MAGIC));
    *n = v_sub(biased, v_splat(POW2_MAGIC));
    return vreinterpretq_f64_u64(vshlq_n_u64(vreinterpretq_u64_f64(biased), MANTISSA_BITS));
}

FA_INLINE void v_transpose(vec r[LANES])
{
    vec a = vtrn1q_f64(r[0], r[1]), b = vtrn2q_f64(r[0], r[1]);
    r[0] = a;
    r[1] = b;
}

FA_INLINE vec v_repeat(const int n, const real *p)
{
    return n == 2 ? vld1q_f64(p) : vld1q_dup_f64(p);
}

FA_INLINE vec v_stretch(const int n, const real *p)
{
    return n == 2 ? vld1q_dup_f64(p) : vld1q_f64(p);
}

FA_INLINE void v_regroup(const int n, vec *r)
{
    if (n == 1) v_transpose(r);
}

FA_INLINE vec v_sum_groups(const int n, vec *r) { return n == 2 ? vpaddq_f64(r[0], r[1]) : r[0]; }

FA_INLINE vec v_shift_bits(vec a)
{
    return vreinterpretq_f64_u64(vshlq_n_u64(vreinterpretq_u64_f64(a), 1));
}
#endif

/* Each byte keeps the bit of its place, and neighbours are added up. */
FA_INLINE uint32_t v_flags(const uint8_t *p)
{
    const uint8x16_t places = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint32_t flags = 0;
    for (int n = 0; n < 32; n += 16) {
        const uint8x16_t bytes = vld1q_u8(p + n);
        const uint8x16_t kept = vandq_u8(vtstq_u8(bytes, bytes), places);
        const uint32_t low = vaddv_u8(vget_low_u8(kept)), high = vaddv_u8(vget_high_u8(kept));
        flags |= (low | high << 8) << n;
    }
    return flags;
}

#if FA_REAL_BITS == 32
FA_INLINE vec v_of_half(uint16x4_t bits) { return vcvt_f32_f16(vreinterpret_f16_u16(bits)); }
FA_INLINE uint16x4_t v_four_bytes(const void *p)
{
    uint32_t bytes;
    memcpy(&bytes, p, sizeof bytes);
    return vget_low_u16(vmovl_u8(vcreate_u8(bytes)));
}

FA_INLINE vec v_from_half(const void *p) { return v_of_half(vld1_u16(p)); }
FA_INLINE void v_to_half(void *p, vec a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a))); }

FA_INLINE vec v_pair_halves(vec a, vec b)
{
    const uint16x4_t low = vreinterpret_u16_f16(vcvt_f16_f32(a));
    const uint16x4_t high = vreinterpret_u16_f16(vcvt_f16_f32(b));
    return vreinterpretq_f32_u16(vcombine_u16(vzip1_u16(low, high), vzip2_u16(low, high)));
}

FA_INLINE vec v_from_bfloat(const void *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}

/* Rounded, in the upper halves. */
FA_INLINE uint32x4_t bfloat_bits(vec a)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(a);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vbslq_u32(v_eq(a, a), rounded, quiet);
}

FA_INLINE void v_to_bfloat(void *p, vec a) { vst1_u16(p, vshrn_n_u32(bfloat_bits(a), 16)); }

FA_INLINE vec v_pair_bfloats(vec a, vec b)
{
    return vreinterpretq_f32_u32(vsriq_n_u32(bfloat_bits(b), bfloat_bits(a), 16));
}

FA_INLINE vec v_from_int8(const void *p)
{
    const int8x8_t bytes =
        vreinterpret_s8_u8(vmovn_u16(vcombine_u16(v_four_bytes(p), vdup_n_u16(0))));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}

FA_INLINE vec v_from_e5m2(const void *p) { return v_of_half(vshl_n_u16(v_four_bytes(p), 8)); }

FA_INLINE vec v_from_e4m3(const void *p)
{
    const uint16x4_t bits = v_four_bytes(p), size = vand_u16(bits, vdup_n_u16(0x7f));
    const uint16x4_t nan = vshr_n_u16(vceq_u16(size, vdup_n_u16(0x7f)), 1);
    const uint16x4_t sign = vshl_n_u16(veor_u16(bits, size), 8);
    return v_mul(v_of_half(vorr_u16(vorr_u16(vshl_n_u16(size, 7), sign), nan)),
                 v_splat(E4M3_FACTOR));
}
#endif
#undef V
