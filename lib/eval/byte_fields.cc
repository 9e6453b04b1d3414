#include "lib/eval/byte_fields.h"

namespace kvsieve::eval {
namespace {

using R = ByteReport;

constexpr ByteField kByteFields[] = {
    {"full_bytes", [](const R& r) { return r.full_bytes(); },
     "f16 K and V of every token seen: what a plain engine would hold"},
    {"key_full_bytes", [](const R& r) { return r.key_full_bytes; }, "K's part of full"},
    {"value_full_bytes", [](const R& r) { return r.value_full_bytes; }, "V's part of full"},
    {"payload_bytes", [](const R& r) { return r.payload_bytes; },
     "codes of the rows kept; exact rows in their own width"},
    {"scale_bytes", [](const R& r) { return r.scale_bytes; },
     "scales, zero points and norms of the rows kept"},
    {"metadata_bytes", [](const R& r) { return r.metadata_bytes; },
     "positions, statistics per head"},
    {"kept_bytes", [](const R& r) { return r.kept_bytes(); }, "payload + scales + metadata"},
    {"key_kept_bytes", [](const R& r) { return r.key_kept_bytes; },
     "K's part of kept, with positions"},
    {"value_kept_bytes", [](const R& r) { return r.value_kept_bytes; }, "V's part of kept"},
    {"padding_bytes", [](const R& r) { return r.padding_bytes; },
     "alignment and dimension padding"},
    {"reserved_bytes", [](const R& r) { return r.reserved_bytes; }, "room for more rows"},
    {"observation_bytes", [](const R& r) { return r.observation_bytes; },
     "the ring of window queries"},
    {"resident_bytes", [](const R& r) { return r.resident_bytes(); },
     "kept + padding + reserved + observation: memory asked of the allocator"},
    {"shared_bytes", [](const R& r) { return r.shared_bytes; },
     "part of resident that forks of the cache hold as well"},
    {"scratch_peak_bytes", [](const R& r) { return r.scratch_peak_bytes; },
     "largest temporary memory of any call"},
};

constexpr RatioField kRatioFields[] = {
    {"keep_rate", [](const R& r) { return std::optional<double>(r.keep_rate()); },
     "rows kept / tokens seen"},
    {"eviction_ratio", [](const R& r) { return r.eviction_ratio(); },
     "full / f16 bytes of the rows kept"},
    {"storage_ratio", [](const R& r) { return r.storage_ratio(); },
     "f16 bytes of the rows kept / kept"},
    {"total_ratio", [](const R& r) { return r.total_ratio(); }, "full / kept"},
    {"resident_ratio", [](const R& r) { return r.resident_ratio(); }, "full / resident"},
};

}  // namespace

std::span<const ByteField> ByteFields() { return kByteFields; }
std::span<const RatioField> RatioFields() { return kRatioFields; }

}  // namespace kvsieve::eval
