#include "lib/state_header.h"

#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "kvsieve/str_cat.h"

namespace kvsieve {
namespace {

// Not text, and changed by whatever changes line ends.
constexpr std::uint8_t kMagic[8] = {0x89, 'K', 'V', 'S', '\r', '\n', 0x1A, '\n'};
constexpr std::uint32_t kMaxHeaderBytes = std::uint32_t{16} << 20;
constexpr std::uint32_t kMaxLayers = 4096;
// Whatever a source promises: containers count no further than some 2^59.
constexpr std::int64_t kMaxStateBytes = std::int64_t{1} << 50;

struct Preamble {
  std::uint8_t magic[8];
  std::uint32_t version;
  std::uint32_t header_bytes;  // of what follows, up to the checksum
};

constexpr std::uint32_t kFinished = 1U << 0;
constexpr std::uint32_t kDecodeRowsExact = 1U << 1;
constexpr std::uint32_t kRowsRounded = 1U << 2;
constexpr std::uint32_t kRowsDropped = 1U << 3;
constexpr std::uint32_t kAllFlags = (1U << 4) - 1;

// Then the texts spec and identity, then the layers.
struct HeaderRecord {
  std::int64_t scratch_peak_bytes;
  std::uint32_t flags;
  std::uint32_t layers;
};

// Then one text for each tier.
struct LayerRecord {
  std::int64_t section_bytes;
  std::int32_t layer;
  std::int32_t query_heads;
  std::int32_t kv_heads;
  std::int32_t key_dim;
  std::int32_t value_dim;
  std::uint32_t scale_bits;
  std::uint32_t softcap_bits;
  std::int32_t sliding_window;
  std::uint32_t value_is_key_prefix;
  std::uint32_t tiers;
};

void PutLayer(const SavedLayer& saved, StateWriter& out) {
  // One name per member: one more does not compile until it is saved.
  const auto& [layer, query_heads, kv_heads, key_dim, value_dim, scale, softcap, sliding_window,
               value_is_key_prefix] = saved.spec;
  out.Put(LayerRecord{saved.bytes, layer, query_heads, kv_heads, key_dim, value_dim,
                      std::bit_cast<std::uint32_t>(scale), std::bit_cast<std::uint32_t>(softcap),
                      sliding_window, value_is_key_prefix ? 1U : 0U,
                      static_cast<std::uint32_t>(saved.stores.size())});
  for (const std::string& store : saved.stores) out.Text(store);
}

void PutHeader(const StateHeader& header, StateWriter& out) {
  const std::uint32_t flags = (header.finished ? kFinished : 0) |
                              (header.decode_rows == DecodeRows::kExact ? kDecodeRowsExact : 0) |
                              (header.rows_rounded ? kRowsRounded : 0) |
                              (header.rows_dropped ? kRowsDropped : 0);
  out.Put(HeaderRecord{header.scratch_peak_bytes, flags,
                       static_cast<std::uint32_t>(header.layers.size())});
  out.Text(header.spec);
  out.Text(header.identity);
  for (const SavedLayer& layer : header.layers) PutLayer(layer, out);
}

Result<SavedLayer> GetLayer(StateReader& in) {
  LayerRecord record;
  KVS_RETURN_IF_ERROR(in.Get(&record));
  SavedLayer saved;
  saved.bytes = record.section_bytes;
  saved.spec = {record.layer,
                record.query_heads,
                record.kv_heads,
                record.key_dim,
                record.value_dim,
                std::bit_cast<float>(record.scale_bits),
                std::bit_cast<float>(record.softcap_bits),
                record.sliding_window,
                record.value_is_key_prefix != 0};
  if (record.section_bytes < 0) return BadState("section", "a length below 0");
  if (record.value_is_key_prefix > 1) return BadState("value_is_key_prefix", "neither 0 nor 1");
  if (record.tiers == 0) return BadState("tiers", "none");
  KVS_RETURN_IF_ERROR(InState("shape", saved.spec.Validate()));
  for (std::uint32_t tier = 0; tier < record.tiers; ++tier) {
    KVS_RETURN_IF_ERROR(in.Text("store", &saved.stores.emplace_back()));
  }
  return saved;
}

Result<StateHeader> GetHeader(StateReader& in) {
  HeaderRecord record;
  KVS_RETURN_IF_ERROR(in.Get(&record));
  StateHeader header;
  header.scratch_peak_bytes = record.scratch_peak_bytes;
  header.finished = (record.flags & kFinished) != 0;
  header.decode_rows =
      (record.flags & kDecodeRowsExact) != 0 ? DecodeRows::kExact : DecodeRows::kStored;
  header.rows_rounded = (record.flags & kRowsRounded) != 0;
  header.rows_dropped = (record.flags & kRowsDropped) != 0;
  if (record.scratch_peak_bytes < 0) return BadState("scratch_peak_bytes", "below 0");
  if ((record.flags & ~kAllFlags) != 0) return BadState("flags", "bits without a meaning are set");
  if (record.layers == 0 || record.layers > kMaxLayers) {
    return BadState("layers", StrCat(record.layers, ", expected 1 to ", kMaxLayers));
  }
  KVS_RETURN_IF_ERROR(in.Text("spec", &header.spec));
  KVS_RETURN_IF_ERROR(in.Text("identity", &header.identity));
  for (std::uint32_t i = 0; i < record.layers; ++i) {
    Result<SavedLayer> layer = GetLayer(in);
    if (!layer.ok()) return InState(StrCat("layer ", i), layer.TakeStatus());
    header.layers.push_back(*std::move(layer));
  }
  return header;
}

// Sections must end where the source does.
Status CheckSections(const StateHeader& header, std::int64_t bytes_there) {
  std::int64_t left = bytes_there;
  for (std::size_t i = 0; i < header.layers.size(); ++i) {
    const std::int64_t section = header.layers[i].bytes;
    if (left < kChecksumBytes || section > left - kChecksumBytes) {
      return BadState("layers", StrCat("it holds ", i, " of ", header.layers.size(),
                                       " layers: the end is missing"));
    }
    left -= section + kChecksumBytes;
  }
  if (left == 0) return Status::Ok();
  return BadState("length", StrCat(left, " bytes follow the last layer"));
}

Status CheckPreamble(const Preamble& preamble, std::int64_t bytes_there) {
  if (!BeginsSavedState(std::as_bytes(std::span(preamble.magic)))) {
    return BadState("magic", "this is no saved cache");
  }
  if (preamble.version < kOldestStateVersion || preamble.version > kStateVersion) {
    return Status::Unsupported(
        StrCat("version: its format is ", preamble.version, ", this build reads ",
               kOldestStateVersion, " to ", kStateVersion,
               preamble.version > kStateVersion ? "; a newer kvsieve wrote it" : ""));
  }
  if (preamble.header_bytes > kMaxHeaderBytes) {
    return BadState("header length",
                    StrCat(preamble.header_bytes, ", the limit is ", kMaxHeaderBytes));
  }
  if (bytes_there < std::int64_t{preamble.header_bytes} + kChecksumBytes) {
    return BadState("header", "its end is missing");
  }
  return Status::Ok();
}

}  // namespace

std::string ShapeText(const LayerSpec& layer) {
  return StrCat("layer ", layer.layer, " with ", layer.query_heads, "/", layer.kv_heads,
                " heads, dims ", layer.key_dim, "/", layer.value_dim, ", scale ", layer.scale,
                ", softcap ", layer.softcap, ", window ", layer.sliding_window,
                layer.value_is_key_prefix ? ", V in K" : "");
}

Status WriteStateHeader(const StateHeader& header, StateWriter& out, std::uint64_t* checksum) {
  StateWriter count;
  PutHeader(header, count);
  if (count.bytes() > kMaxHeaderBytes || header.layers.size() > kMaxLayers) {
    return Status::Invalid(StrCat("a saved state has at most ", kMaxLayers,
                                  " layers and a head of ", kMaxHeaderBytes, " bytes, not ",
                                  header.layers.size(), " and ", count.bytes()));
  }
  Preamble preamble = {{}, kStateVersion, static_cast<std::uint32_t>(count.bytes())};
  std::memcpy(preamble.magic, kMagic, sizeof kMagic);
  out.StartSection(0);
  out.Put(preamble);
  PutHeader(header, out);
  *checksum = out.EndSection();
  return Status::Ok();
}

Result<StateHeader> ReadStateHeader(const ByteSource& source, StateReader& in,
                                    std::uint64_t* checksum) {
  const std::int64_t bytes = source.bytes_left();
  constexpr std::int64_t kPreambleBytes = sizeof(Preamble);
  if (bytes < kPreambleBytes) {
    return BadState("magic", StrCat(bytes, " bytes are no saved cache"));
  }
  if (bytes > kMaxStateBytes) {
    return BadState("length", StrCat(bytes, " bytes, the limit is ", kMaxStateBytes));
  }
  Preamble preamble;
  in.StartSection(kPreambleBytes, 0);
  KVS_RETURN_IF_ERROR(in.Get(&preamble));
  KVS_RETURN_IF_ERROR(CheckPreamble(preamble, bytes - kPreambleBytes));
  in.set_version(static_cast<int>(preamble.version));
  in.Extend(preamble.header_bytes);
  Result<StateHeader> header = GetHeader(in);
  const std::int64_t unread = in.left();
  KVS_RETURN_IF_ERROR(InState("header", in.EndSection(checksum)));
  if (!header.ok()) return InState("header", header.TakeStatus());
  if (unread > 0) return BadState("header", StrCat(unread, " bytes too many"));
  header->bytes = bytes;
  header->version = in.version();
  KVS_RETURN_IF_ERROR(
      CheckSections(*header, bytes - kPreambleBytes - preamble.header_bytes - kChecksumBytes));
  return header;
}

bool BeginsSavedState(std::span<const std::byte> bytes) {
  return bytes.size() >= sizeof kMagic && std::memcmp(bytes.data(), kMagic, sizeof kMagic) == 0;
}

Result<StateInfo> ReadStateInfo(ByteSource& source) {
  return NoThrow([&]() -> Result<StateInfo> {
    StateReader in(source);
    std::uint64_t checksum = 0;
    Result<StateHeader> header = ReadStateHeader(source, in, &checksum);
    if (!header.ok()) return InState("saved state", header.TakeStatus());
    return StateInfo(*std::move(header));
  });
}

}  // namespace kvsieve
