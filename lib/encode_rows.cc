#include "kvsieve/encode_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "kvsieve/allocator.h"
#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"

namespace kvsieve {
namespace {

// The caller's rows, which codecs read as f32.
class ViewedRows final : public RowSource {
 public:
  explicit ViewedRows(const HeadsView& view) : view_(view) {}
  std::int64_t rows() const override { return view_.rows; }
  int dim() const override { return view_.dim; }
  void ReadRows(RowIndex first, int count, float* out) const override {
    for (int r = 0; r < count; ++r) {
      ConvertToF32(view_.row(0, first + r), view_.type, dim(), out + std::int64_t{r} * dim());
    }
  }

 private:
  const HeadsView& view_;
};

// Codecs want aligned blocks; a transport's bytes lie behind whatever header it has.
class AlignedBlock {
 public:
  explicit AlignedBlock(const Codec& codec)
      : lines_(codec.BlockBytes(kBlockRows) / kBlockAlignment) {}
  std::uint8_t* data() { return lines_.front().bytes; }
  BlockRef ref(int capacity_rows) { return {data(), capacity_rows}; }
  void Clear() { std::fill(lines_.begin(), lines_.end(), Line{}); }

 private:
  struct alignas(kBlockAlignment) Line {
    std::uint8_t bytes[kBlockAlignment];
  };
  std::vector<Line> lines_;
};

// One block among the bytes.
struct BlockPlace {
  std::int64_t first_row = 0;
  int rows = 0;
  int capacity_rows = 0;
  std::size_t at = 0;  // bytes before it
  std::size_t bytes = 0;
};

int CapacityFor(const Codec& codec, int rows) {
  const int unit = std::max(kPanelRows, codec.group_rows());
  return (rows + unit - 1) / unit * unit;
}

template <class Visit>
Status ForEachBlock(const Codec& codec, std::int64_t rows, Visit visit) {
  BlockPlace place;
  for (; place.first_row < rows; place.first_row += kBlockRows) {
    place.rows = static_cast<int>(std::min<std::int64_t>(kBlockRows, rows - place.first_row));
    place.capacity_rows = CapacityFor(codec, place.rows);
    place.bytes = codec.BlockBytes(place.capacity_rows);
    KVS_RETURN_IF_ERROR(visit(place));
    place.at += place.bytes;
  }
  return Status::Ok();
}

template <class T>
Status CheckSpan(std::string_view name, std::span<T> span, std::int64_t wanted) {
  const auto size = static_cast<std::int64_t>(span.size());
  if (size == wanted && (span.data() != nullptr || wanted == 0)) return Status::Ok();
  return Status::Invalid(StrCat(name, ": expected ", wanted, " elements, got ",
                                span.data() == nullptr ? "null" : StrCat(size)));
}

Status CheckRows(const HeadsView& rows, int dim) {
  if (rows.heads != 1 || rows.dim != dim || (rows.data == nullptr && rows.rows > 0)) {
    return Status::Invalid(StrCat("rows have shape [", rows.heads, ", ", rows.rows, ", ", rows.dim,
                                  "]", rows.data == nullptr ? " (null)" : "", ", expected [1, n, ",
                                  dim, "]"));
  }
  if (rows.rows > 1 && rows.row_stride < dim) {
    return Status::Invalid(
        StrCat("rows have row_stride ", rows.row_stride, ", smaller than their dim ", dim));
  }
  return Status::Ok();
}

// What a chain learnt is finite.
Status CheckStats(std::span<const float> stats) {
  for (std::size_t i = 0; i < stats.size(); ++i) {
    if (std::isfinite(stats[i])) continue;
    return Status::Invalid(StrCat("stats: element ", i, " is ", stats[i]));
  }
  return Status::Ok();
}

}  // namespace

Result<EncodedRowsSize> EncodedSize(const Chain& chain, std::int64_t rows) {
  constexpr std::int64_t kMaxRows = std::numeric_limits<TokenPos>::max();
  if (rows < 0 || rows > kMaxRows) {
    return Status::Invalid(StrCat(rows, " rows are outside [0, ", kMaxRows, "]"));
  }
  const Codec& codec = chain.codec();
  const auto bytes_of = [&](int capacity) {
    return static_cast<std::int64_t>(codec.BlockBytes(capacity));
  };
  const int rest = static_cast<int>(rows % kBlockRows);
  return EncodedRowsSize{rows / kBlockRows * bytes_of(kBlockRows) +
                             (rest > 0 ? bytes_of(CapacityFor(codec, rest)) : 0),
                         chain.stats_floats()};
}

Result<std::int64_t> EncodeRowsTo(const Chain& chain, const HeadsView& rows, std::span<float> stats,
                                  std::span<std::uint8_t> bytes) {
  return NoThrow([&]() -> Result<std::int64_t> {
    KVS_RETURN_IF_ERROR(CheckRows(rows, chain.dim()));
    KVS_ASSIGN_OR_RETURN(const EncodedRowsSize size, EncodedSize(chain, rows.rows));
    KVS_RETURN_IF_ERROR(CheckSpan("stats", stats, size.stats_floats));
    KVS_RETURN_IF_ERROR(CheckSpan("bytes", bytes, size.bytes));
    const ViewedRows source(rows);
    std::vector<float> learnt(stats.size());
    std::vector<float> scratch(static_cast<std::size_t>(kBlockRows) * chain.dim());
    AlignedBlock block(chain.codec());
    KVS_RETURN_IF_ERROR(chain.Learn(source, learnt.data()));  // refuses what Encode would
    std::copy(learnt.begin(), learnt.end(), stats.begin());
    std::int64_t saturated = 0;
    const auto encode = [&](const BlockPlace& place) -> Status {
      source.ReadRows(place.first_row, place.rows, scratch.data());
      block.Clear();
      KVS_RETURN_IF_ERROR(chain.Encode(learnt.data(), scratch.data(), place.rows,
                                       block.ref(place.capacity_rows), 0));
      std::memcpy(bytes.data() + place.at, block.data(), place.bytes);
      saturated += chain.codec().CountSaturated(scratch.data(), place.rows);
      return Status::Ok();
    };
    KVS_RETURN_IF_ERROR(ForEachBlock(chain.codec(), rows.rows, encode));
    return saturated;
  });
}

Status DecodeRowsFrom(const Chain& chain, std::int64_t row_count, std::span<const float> stats,
                      std::span<const std::uint8_t> bytes, std::span<float> rows) {
  return NoThrow([&]() -> Status {
    KVS_ASSIGN_OR_RETURN(const EncodedRowsSize size, EncodedSize(chain, row_count));
    KVS_RETURN_IF_ERROR(CheckSpan("stats", stats, size.stats_floats));
    KVS_RETURN_IF_ERROR(CheckSpan("bytes", bytes, size.bytes));
    KVS_RETURN_IF_ERROR(CheckSpan("rows", rows, row_count * chain.dim()));
    KVS_RETURN_IF_ERROR(CheckStats(stats));
    AlignedBlock block(chain.codec());
    return ForEachBlock(chain.codec(), row_count, [&](const BlockPlace& place) -> Status {
      std::memcpy(block.data(), bytes.data() + place.at, place.bytes);
      chain.Decode(stats.data(), block.ref(place.capacity_rows), 0, place.rows,
                   rows.data() + place.first_row * chain.dim());
      return Status::Ok();
    });
  });
}

}  // namespace kvsieve
