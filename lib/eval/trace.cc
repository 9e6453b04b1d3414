#include "kvsieve/eval/trace.h"

#include <exception>
#include <new>
#include <utility>

#include "kvsieve/str_cat.h"
#include "lib/eval/mapped_file.h"
#include "lib/eval/trace_reader.h"

namespace kvsieve::eval {

struct Trace::Impl {
  std::string name;
  MappedFile file;               // one of these two
  std::vector<std::byte> bytes;  // owns what `content` points to
  TraceContent content;

  // Exceptions of the libraries underneath stop here.
  static Result<Trace> Read(std::unique_ptr<Impl> impl, std::span<const std::byte> file,
                            const FileErrors& errors) {
    try {
      KVS_ASSIGN_OR_RETURN(impl->content, ReadTrace(file, errors));
    } catch (const std::bad_alloc&) {
      return errors.Make(ErrorCode::kOutOfMemory, "", "is too large for the memory there is",
                         "capture fewer layers or tokens");
    } catch (const std::exception& failure) {
      return errors.Invalid("", OneLine(failure.what()), "report this file");
    }
    impl->name = errors.path().substr(errors.path().find_last_of('/') + 1);
    return Trace(std::move(impl));
  }
};

Result<Trace> Trace::Open(const std::string& path) {
  KVS_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  auto impl = std::make_unique<Impl>();
  impl->file = std::move(file);
  const auto bytes = impl->file.bytes();
  return Impl::Read(std::move(impl), bytes, FileErrors(path));
}

Result<Trace> Trace::FromBytes(std::vector<std::byte> bytes, const std::string& name) {
  auto impl = std::make_unique<Impl>();
  impl->bytes = std::move(bytes);
  const std::span<const std::byte> file = impl->bytes;
  return Impl::Read(std::move(impl), file, FileErrors(name));
}

Trace::Trace(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trace::~Trace() = default;
Trace::Trace(Trace&&) noexcept = default;
Trace& Trace::operator=(Trace&&) noexcept = default;

const std::string& Trace::name() const { return impl_->name; }
const std::vector<TraceLayer>& Trace::layers() const { return impl_->content.layers; }
std::int64_t Trace::tokens() const { return std::ssize(impl_->content.positions); }
std::int64_t Trace::window() const { return std::ssize(impl_->content.window_positions); }
std::int64_t Trace::n_eval() const { return std::ssize(impl_->content.eval_positions); }
std::span<const TokenPos> Trace::positions() const { return impl_->content.positions; }
std::span<const TokenPos> Trace::window_positions() const {
  return impl_->content.window_positions;
}
std::span<const TokenPos> Trace::eval_positions() const { return impl_->content.eval_positions; }
std::span<const std::int32_t> Trace::token_ids() const { return impl_->content.token_ids; }
const std::map<std::string, std::string>& Trace::metadata() const {
  return impl_->content.metadata;
}

std::vector<LayerSpec> Trace::LayerSpecs() const {
  std::vector<LayerSpec> specs;
  for (const TraceLayer& layer : layers()) specs.push_back(layer.spec);
  return specs;
}

}  // namespace kvsieve::eval
