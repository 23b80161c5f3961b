#include "comm/fingerprint.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "base/error.h"

namespace ringdp::comm {
namespace {

constexpr uint32_t kMagic = 0x72646e31;  // "rdn1"

constexpr size_t kShownCounts = 6;  // counts of uneven parts that messages name; the hash covers all
static_assert(Placement::kMostRoots == 1 + kShownCounts);
constexpr uint32_t kOfRoots = 1u << 31;

// The bytes of a header: fixed width, no padding, host byte order, which the magic number checks.
struct Wire {
  uint32_t magic;
  uint8_t what, dtype, op, place;
  int32_t root;
  // Length of counts; or kOfRoots and how many roots of leaves all ranks have, whose hash is counts_hash.
  uint32_t parts;
  int64_t count;
  uint64_t seq, group, generation;
  uint64_t counts_hash, divisor_bits;
  // UINT32_MAX: at least that many. Or where this rank's further roots lie, in cache lines (Placement).
  uint32_t counts[kShownCounts];
  int64_t inputs_at, output_at,
      part;         // a placement; on devices the symmetric buffer and the offset in it, which must be equal
  uint64_t digest;  // this and the next: Remarks
  int64_t waited_ns;
};
static_assert(sizeof(Wire) <= transport::kHeaderBytes);
static_assert(std::has_unique_object_representations_v<Wire>);

uint64_t hash_bytes(const void* bytes, size_t size) {  // FNV-1a
  uint64_t h = 0xcbf29ce484222325u;
  for (size_t i = 0; i < size; ++i) h = (h ^ static_cast<const unsigned char*>(bytes)[i]) * 0x100000001b3u;
  return h;
}

Wire to_wire(const OpDesc& d) {
  Wire w{};
  w.magic = kMagic;
  w.what = static_cast<uint8_t>(d.what);
  w.dtype = static_cast<uint8_t>(d.dtype);
  w.op = static_cast<uint8_t>(d.op);
  w.place = static_cast<uint8_t>(d.place);
  w.root = d.root;
  w.parts = static_cast<uint32_t>(d.counts.size());
  w.count = d.count;
  w.seq = d.seq;
  w.group = d.group;
  w.generation = d.generation;
  w.counts_hash = hash_bytes(d.counts.data(), d.counts.size() * sizeof(int64_t));
  if (d.roots) {
    const std::vector<int64_t> numbers = d.roots->numbers();
    w.counts_hash = hash_bytes(numbers.data(), numbers.size() * sizeof(int64_t));
    w.parts = kOfRoots;
    for (const auto& of_rank : d.roots->by_rank) w.parts += static_cast<uint32_t>(of_rank.size());
  }
  std::memcpy(&w.divisor_bits, &d.divisor, sizeof d.divisor);
  if (d.place == Place::kDevices) {
    w.inputs_at = d.buffer;
    w.output_at = d.buffer_at;
  }
  if (d.place == Place::kStepping) w.output_at = d.gives ? 1 : 0;
  for (size_t i = 0; i < std::min(d.counts.size(), kShownCounts); ++i) {
    w.counts[i] = static_cast<uint32_t>(std::min<int64_t>(d.counts[i], UINT32_MAX));
  }
  return w;
}

bool valid(const Wire& w) {
  return w.magic == kMagic && w.what < plan::kCollectiveCount && w.dtype < kDTypeCount && w.op < kReduceOpCount &&
         w.place < kPlaceCount;
}

bool has_roots(const Wire& w) { return (w.parts & kOfRoots) != 0; }

std::string hex(uint64_t hash) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", static_cast<unsigned>(hash ^ (hash >> 32)));
  return text;
}

std::string in_list(const Wire& w) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(w.parts, kShownCounts); ++i) {
    text += std::string(i ? ", " : "") + (w.counts[i] == UINT32_MAX ? ">= " : "") + std::to_string(w.counts[i]);
  }
  return "[" + text + (w.parts > kShownCounts ? ", ...]" : "]");
}

std::string in_words(const Wire& w) {
  const plan::Traits& traits = plan::traits_of(static_cast<plan::Collective>(w.what));
  const auto place = static_cast<Place>(w.place);
  if (place == Place::kMeeting) return "its first collective of tensors on a device";
  if (place == Place::kSharing) return "what makes or gives back memory that devices share";
  std::string text = std::string(traits.name) + "(";
  if (traits.inputs != plan::Tensors::kNone) {
    if (traits.is(plan::kReduces)) text += std::string(name_of(static_cast<ReduceOp>(w.op))) + ", ";
    text += name_of(static_cast<DType>(w.dtype));
    const bool counted = !traits.has_splits() || is_on_devices(place);
    if (counted) text += " x " + (w.parts && !has_roots(w) ? in_list(w) : std::to_string(w.count));
    if (traits.root != plan::Root::kNone) text += ", root " + std::to_string(w.root);
    if (has_roots(w)) {
      text += ", " + std::to_string(w.parts - kOfRoots) + " roots of leaves, allotment " + hex(w.counts_hash);
    }
    double divisor = 0;
    std::memcpy(&divisor, &w.divisor_bits, sizeof divisor);
    if (divisor != 0) text += ", divisor " + std::to_string(divisor);
  }
  if (place == Place::kHost) return text + ")";
  text += place == Place::kStepping ? ") on devices with a step" : ") on devices";
  if (w.inputs_at != 0)
    text += " in symmetric buffer " + std::to_string(w.inputs_at) + " at " + std::to_string(w.output_at);
  return text;
}

std::string differences(const Wire& a, const Wire& b) {
  std::string list;
  const auto add = [&list](bool differs, const char* what) {
    if (differs) list += (list.empty() ? "" : ", ") + std::string(what);
  };
  add(a.group != b.group || a.generation != b.generation, "group");
  add(a.seq != b.seq, "sequence number");
  add(a.what != b.what, "collective");
  const auto steps = [](const Wire& w) { return static_cast<Place>(w.place) == Place::kStepping; };
  add(a.place != b.place, steps(a) || steps(b) ? "step" : "host or devices");
  if (a.what == b.what && a.place == b.place) {
    add(a.dtype != b.dtype, "dtype");
    const bool of_roots = has_roots(a) || has_roots(b);
    const bool other_parts = a.parts != b.parts || a.counts_hash != b.counts_hash;
    add(a.count != b.count || (other_parts && !of_roots), "element count");
    add(other_parts && of_roots, "allotment of leaves to ranks");
    add(a.op != b.op, "reduce op");
    add(a.root != b.root, "root");
    add(a.divisor_bits != b.divisor_bits, "divisor");
    const auto place = static_cast<Place>(a.place);
    add(place == Place::kStepping && a.output_at != b.output_at, "who gets the parameters");
    const bool elsewhere = a.inputs_at != b.inputs_at || a.output_at != b.output_at;
    add(place == Place::kDevices && elsewhere, "place in shared memory");
  }
  return list;
}

}  // namespace

std::string describe(const OpDesc& d) { return in_words(to_wire(d)); }

transport::Header encode(const OpDesc& d, const Placement& placement, const Remarks& remarks) {
  Wire w = to_wire(d);
  if (!is_on_devices(d.place)) {
    w.inputs_at = placement.inputs;
    w.output_at = placement.output;
    w.part = placement.part;
    for (size_t i = 0; i < placement.further.size(); ++i) {
      w.counts[i] = static_cast<uint32_t>(placement.further[i] / Placement::kLineBytes);
    }
  }
  w.digest = remarks.digest;
  w.waited_ns = remarks.waited_ns;
  transport::Header header{};
  std::memcpy(header.bytes, &w, sizeof w);
  return header;
}

Placement placement_in(const transport::Header& header) {
  Wire w;
  std::memcpy(&w, header.bytes, sizeof w);
  Placement placement{w.inputs_at, w.output_at, w.part};
  for (const uint32_t line : w.counts) placement.further.push_back(line * Placement::kLineBytes);
  return placement;
}

Remarks remarks_in(const transport::Header& header) {
  Wire w;
  std::memcpy(&w, header.bytes, sizeof w);
  return {w.digest, w.waited_ns};
}

void check_same(const OpDesc& mine, int my_rank, const transport::Header& theirs, int theirs_rank) {
  const Wire own = to_wire(mine);
  Wire other;
  std::memcpy(&other, theirs.bytes, sizeof other);
  const bool is_fingerprint = valid(other);
  const std::string differing = is_fingerprint ? differences(own, other) : "";
  if (is_fingerprint && differing.empty()) return;
  const std::string me = "rank " + std::to_string(my_rank), them = "rank " + std::to_string(theirs_rank);
  if (!is_fingerprint) {
    throw Error(ErrorKind::kMismatch,
                them + " sent bytes that are no fingerprint in collective #" + std::to_string(mine.seq) +
                    ": it runs another build of ringdp, or its memory is damaged",
                theirs_rank);
  }
  throw Error(ErrorKind::kMismatch,
              "ranks disagree in collective #" + std::to_string(mine.seq) + " (" + differing + "): " + me + " called " +
                  in_words(own) + ", " + them + " called " + in_words(other) +
                  ". Every rank must make the same calls in the same order; nothing was reduced.",
              theirs_rank);
}

uint64_t hash_name(const std::string& name) { return hash_bytes(name.data(), name.size()); }

}  // namespace ringdp::comm
