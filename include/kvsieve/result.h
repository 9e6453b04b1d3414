// Errors as values. No function of kvsieve prints or aborts, and none throws that returns a Status,
// or a Result holding a value; those that return plain text or reports may throw std::bad_alloc.
//
// Messages are one line and name the value, the limit and the option, for example
//   budget 16 is smaller than sinks 4 + window 32 (option budget)
#ifndef KVSIEVE_RESULT_H_
#define KVSIEVE_RESULT_H_

#include <cassert>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

namespace kvsieve {

enum class ErrorCode {
  kInvalidArgument,  // a value, shape or spec that can never work
  kUnsupported,      // understood, but this build or version does not do it
  kNonFinite,        // NaN or Inf in input rows
  kOutOfMemory,      // the Allocator, or the heap, refused
  kState,            // a call out of order, for example observe after finish_prefill
  kNotExact,         // the exact answer was evicted
  kIo,               // a file could not be read or written
};

struct Error {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string message;  // one line, no trailing newline
};

// Success, or one Error. A success costs one null pointer.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ErrorCode code, std::string message) : error_(new Error{code, std::move(message)}) {}

  static Status Ok() { return {}; }
  static Status Invalid(std::string message) {
    return {ErrorCode::kInvalidArgument, std::move(message)};
  }
  static Status Unsupported(std::string message) {
    return {ErrorCode::kUnsupported, std::move(message)};
  }

  // The heap refused: an error that needs no memory itself.
  static Status HeapExhausted() {
    Status status;
    status.error_.reset(&SharedHeapError());
    return status;
  }

  bool ok() const { return error_ == nullptr; }
  const Error& error() const { return *error_; }  // precondition: !ok()
  // One line; empty where ok().
  const std::string& message() const {
    static const std::string none;
    return ok() ? none : error_->message;
  }

 private:
  static Error& SharedHeapError() {
    static Error error{ErrorCode::kOutOfMemory, "out of memory"};  // short enough for no heap
    return error;
  }
  struct Delete {
    void operator()(Error* error) const {
      if (error != &SharedHeapError()) delete error;
    }
  };

  std::unique_ptr<Error, Delete> error_;
};

// A T, or the Error that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit on purpose
    assert(!status_.ok());
  }

  bool ok() const { return value_.has_value(); }
  const Error& error() const { return status_.error(); }
  const std::string& message() const { return status_.message(); }
  Status TakeStatus() { return std::move(status_); }

  // Precondition of all: ok().
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

// Calls `call`, which returns a Status or a Result, and turns a refused heap request into an error.
// Bookkeeping lives in standard containers; row memory comes from the Allocator and never throws.
template <class Call>
auto NoThrow(Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return Status::HeapExhausted();
  }
}

}  // namespace kvsieve

// An internal mistake of ours, never an input mistake. Compiled out of Release.
#define KVS_DCHECK(condition) assert(condition)

#define KVS_CONCAT_INNER(a, b) a##b
#define KVS_CONCAT(a, b) KVS_CONCAT_INNER(a, b)

#define KVS_RETURN_IF_ERROR(expression)          \
  do {                                           \
    ::kvsieve::Status kvs_status = (expression); \
    if (!kvs_status.ok()) return kvs_status;     \
  } while (false)

// KVS_ASSIGN_OR_RETURN(auto trace, Trace::Open(path));
#define KVS_ASSIGN_OR_RETURN(declaration, expression) \
  KVS_ASSIGN_OR_RETURN_INNER(KVS_CONCAT(kvs_result_, __LINE__), declaration, expression)
#define KVS_ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                       \
  if (!result.ok()) return result.TakeStatus();                     \
  declaration = *std::move(result)

#endif  // KVSIEVE_RESULT_H_
