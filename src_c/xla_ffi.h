/* SPDX-License-Identifier: MIT
 * The part of XLA's foreign function interface that a handler on CPUs needs, in our own words.
 *
 * XLA calls handlers through a C ABI of structs, each with its size in front, and promises to keep
 * old versions working (openxla/xla, xla/ffi/api/c_api.h, where the names are XLA_FFI_*). Fields
 * are only ever added behind, so what is declared here is the prefix that version 0.1 and all
 * later ones share. XLA asks a handler for its version when it is registered and refuses one that
 * it does not speak. tests/test_xla_ffi.py compares every offset with the header that jaxlib ships.
 */
#ifndef FA_XLA_FFI_H
#define FA_XLA_FFI_H

#include <stddef.h>
#include <stdint.h>

enum { XLA_MAJOR = 0, XLA_MINOR = 1 };
enum { XLA_EXTENSION_METADATA = 1 };
enum { XLA_STAGE_EXECUTE = 3 };
enum { XLA_BUFFER = 1 };                 /* kind of an argument, and of a result */
enum { XLA_SCALAR = 3, XLA_STRING = 4 }; /* kind of an attribute */
enum { XLA_PRED = 1, XLA_S32 = 4, XLA_S64 = 5 };
enum { XLA_F16 = 10, XLA_F32 = 11, XLA_F64 = 12, XLA_BF16 = 16 };
enum { XLA_INVALID_ARGUMENT = 3, XLA_RESOURCE_EXHAUSTED = 8, XLA_FAILED_PRECONDITION = 9 };

typedef struct xla_error xla_error;

typedef struct xla_extension {
    size_t size;
    int32_t kind;
    struct xla_extension *next;
} xla_extension;

typedef struct {
    size_t size;
    xla_extension *extensions;
    int32_t major, minor;
} xla_version;

typedef struct {
    size_t size;
    xla_version version;
    uint32_t traits;
} xla_metadata;

typedef struct {
    xla_extension base;
    xla_metadata *metadata;
} xla_metadata_extension;

typedef struct {
    size_t size;
    xla_extension *extensions;
    const char *message;
    int32_t code;
} xla_error_args;

typedef struct {
    size_t size;
    xla_extension *extensions;
    xla_version version;
    const void *internal;
    xla_error *(*error_create)(xla_error_args *args);
} xla_api;

/* A tensor in row-major order. */
typedef struct {
    size_t size;
    xla_extension *extensions;
    int32_t dtype;
    void *data;
    int64_t rank;
    int64_t *shape;
} xla_buffer;

typedef struct {
    const char *text; /* not terminated */
    size_t length;
} xla_span;

typedef struct {
    int32_t dtype;
    void *value;
} xla_scalar;

/* Arguments, or results. */
typedef struct {
    size_t size;
    xla_extension *extensions;
    int64_t count;
    int32_t *kinds;
    void **values;
} xla_values;

typedef struct {
    size_t size;
    xla_extension *extensions;
    int64_t count;
    int32_t *kinds;
    xla_span **names;
    void **values;
} xla_attributes;

typedef struct {
    size_t size;
    xla_extension *extensions;
    const xla_api *api;
    void *context;
    int32_t stage;
    xla_values arguments;
    xla_values results;
    xla_attributes attributes;
} xla_call_frame;

#endif
