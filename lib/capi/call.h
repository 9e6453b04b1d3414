// What each C call goes through: no exception leaves it, and an error leaves its line behind.
#ifndef KVSIEVE_LIB_CAPI_CALL_H_
#define KVSIEVE_LIB_CAPI_CALL_H_

#include <exception>
#include <new>
#include <string_view>

#include "kvsieve/kvsieve_c.h"
#include "kvsieve/result.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::capi {

// Remembers "name: message" as this thread's last error. Needs no memory.
kvs_result Fail(std::string_view name, kvs_result code, std::string_view message) noexcept;
kvs_result Fail(std::string_view name, const Error& error) noexcept;

// Runs `call`, which returns a Status.
template <class Call>
kvs_result Run(std::string_view name, Call&& call) noexcept {
  try {
    const Status status = call();
    return status.ok() ? KVS_OK : Fail(name, status.error());
  } catch (const std::bad_alloc&) {
    return Fail(name, KVS_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& exception) {
    return Fail(name, KVS_INTERNAL, exception.what());
  } catch (...) {
    return Fail(name, KVS_INTERNAL, "an exception of a callback or of kvsieve");
  }
}

inline Status CheckGiven(std::string_view name, const void* pointer) {
  return pointer != nullptr ? Status::Ok() : Status::Invalid(StrCat(name, " is NULL"));
}

}  // namespace kvsieve::capi

#endif  // KVSIEVE_LIB_CAPI_CALL_H_
