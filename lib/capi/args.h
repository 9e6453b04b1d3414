// Argument structs of the C calls: read by their struct_size, checked, and turned into views.
#ifndef KVSIEVE_LIB_CAPI_ARGS_H_
#define KVSIEVE_LIB_CAPI_ARGS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kvsieve/kvsieve_c.h"
#include "kvsieve/result.h"
#include "kvsieve/str_cat.h"
#include "kvsieve/types.h"

namespace kvsieve::capi {

// A struct of the interface, as type-erased bytes: what is known of it here, and what its first
// version had to have.
struct StructShape {
  std::string_view name;  // "args"
  std::size_t bytes;
  std::size_t required_bytes;
  std::size_t alignment;
};

// Whether the caller's struct_size can be one of any version.
Status CheckStructSize(const StructShape& shape, const void* from);
// Copies what the caller's struct has of the known fields; the rest of `to` stays. A struct with
// fields that are not known here is an error unless they are 0.
Status ReadStruct(const StructShape& shape, const void* from, void* to);

// ReadArgs("args", args, offsetof(kvs_attend_args, lse), &known). Each field is as wide as the
// alignment, or shares such a unit with its neighbour, so that no size cuts one.
template <class Args>
Status ReadArgs(std::string_view name, const Args* args, std::size_t required_bytes, Args* known) {
  *known = {};
  return ReadStruct({name, sizeof(Args), required_bytes, alignof(Args)}, args, known);
}
template <class Args>
Status ReadArgs(const Args* args, Args* known) {
  return ReadArgs("args", args, sizeof(Args), known);
}

// The layers of a kvs_cache_args. They lie struct_size of the first apart.
Result<std::vector<LayerSpec>> ReadLayers(const kvs_layer* layers, std::int64_t count);

Status CheckReserved(std::string_view name, std::int32_t reserved);
// Threads that a caller may lend.
Status CheckWorkers(std::string_view name, std::int32_t workers);
// 0 or 1.
Status CheckFlag(std::string_view name, std::int32_t flag);

// No more than there can be positions.
Status CheckRowNumber(std::string_view name, std::int64_t n);

// [count] elements, which must be there when there are any.
template <class T>
Result<std::span<T>> ReadArray(std::string_view name, T* data, std::int64_t count) {
  if (count < 0) return Status::Invalid(StrCat(name, ": ", count, " elements"));
  if (count > PTRDIFF_MAX / static_cast<std::int64_t>(sizeof(T))) {
    return Status::Invalid(StrCat(name, ": ", count, " elements do not fit into memory"));
  }
  if (count > 0 && data == nullptr) return Status::Invalid(StrCat(name, " is NULL"));
  return std::span<T>(data, static_cast<std::size_t>(count));
}

// [heads, n, dim]. The caller checked n.
Result<HeadsView> ReadRows(std::string_view name, const kvs_rows& rows, int heads, std::int64_t n,
                           int dim);

// n positions of a call.
Result<std::span<const TokenPos>> ReadPositions(const std::int32_t* positions, std::int64_t n);

}  // namespace kvsieve::capi

#endif  // KVSIEVE_LIB_CAPI_ARGS_H_
