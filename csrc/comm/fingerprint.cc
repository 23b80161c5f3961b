#include "comm/fingerprint.h"

#include <cstring>
#include <type_traits>

#include "base/error.h"

namespace ringdp::comm {
namespace {

constexpr uint32_t kMagic = 0x72646e31;  // "rdn1"

// The note's bytes: fixed width, no padding, host byte order (a group's hosts are of one kind; the magic tells).
struct Wire {
  uint32_t magic;
  uint8_t what, dtype, op, unused;
  int32_t root;
  uint32_t unused2;
  int64_t count;
  uint64_t seq, group, generation;
};
static_assert(sizeof(Wire) <= transport::kNoteBytes);
static_assert(std::has_unique_object_representations_v<Wire>);

bool reduces(plan::Collective what) {
  return what == plan::Collective::kAllReduce || what == plan::Collective::kReduceScatter;
}

OpDesc decode(const transport::Note& note, bool& valid) {
  Wire w;
  std::memcpy(&w, note.bytes, sizeof w);
  valid = w.magic == kMagic && w.what < plan::kCollectiveCount && w.dtype < kDTypeCount && w.op < kReduceOpCount;
  OpDesc desc;
  if (!valid) return desc;
  desc.what = static_cast<plan::Collective>(w.what);
  desc.dtype = static_cast<DType>(w.dtype);
  desc.op = static_cast<ReduceOp>(w.op);
  desc.root = w.root;
  desc.count = w.count;
  desc.seq = w.seq;
  desc.group = w.group;
  desc.generation = w.generation;
  return desc;
}

std::string differences(const OpDesc& a, const OpDesc& b) {
  std::string list;
  const auto note = [&list](bool differs, const char* what) {
    if (differs) list += (list.empty() ? "" : ", ") + std::string(what);
  };
  note(a.group != b.group || a.generation != b.generation, "group");
  note(a.seq != b.seq, "sequence number");
  note(a.what != b.what, "collective");
  if (a.what == b.what) {
    note(a.dtype != b.dtype, "dtype");
    note(a.count != b.count, "element count");
    note(a.op != b.op, "reduce op");
    note(a.root != b.root, "root");
  }
  return list;
}

}  // namespace

std::string describe(const OpDesc& d) {
  std::string text = std::string(plan::name_of(d.what)) + "(";
  if (d.what != plan::Collective::kBarrier) {
    if (reduces(d.what)) text += std::string(name_of(d.op)) + ", ";
    text += std::string(name_of(d.dtype)) + " x " + std::to_string(d.count);
    if (d.what == plan::Collective::kBroadcast) text += ", root " + std::to_string(d.root);
  }
  return text + ")";
}

transport::Note encode(const OpDesc& d) {
  const Wire w{kMagic,
               static_cast<uint8_t>(d.what),
               static_cast<uint8_t>(d.dtype),
               static_cast<uint8_t>(d.op),
               0,
               d.root,
               0,
               d.count,
               d.seq,
               d.group,
               d.generation};
  transport::Note note{};
  std::memcpy(note.bytes, &w, sizeof w);
  return note;
}

void check_same(const OpDesc& mine, int my_rank, const transport::Note& theirs, int theirs_rank) {
  bool valid = false;
  const OpDesc other = decode(theirs, valid);
  const std::string me = "rank " + std::to_string(my_rank), them = "rank " + std::to_string(theirs_rank);
  if (!valid) {
    throw Error(ErrorKind::kMismatch,
                them + " sent bytes that are no fingerprint in collective #" + std::to_string(mine.seq) +
                    ": it runs another build of ringdp, or its memory is damaged",
                theirs_rank);
  }
  const std::string differing = differences(mine, other);
  if (differing.empty()) return;
  throw Error(ErrorKind::kMismatch,
              "ranks disagree in collective #" + std::to_string(mine.seq) + " (" + differing + "): " + me + " called " +
                  describe(mine) + ", " + them + " called " + describe(other) +
                  ". Every rank must make the same calls in the same order; nothing was reduced.",
              theirs_rank);
}

uint64_t hash_name(const std::string& name) {  // FNV-1a
  uint64_t h = 0xcbf29ce484222325u;
  for (const unsigned char c : name) h = (h ^ c) * 0x100000001b3u;
  return h;
}

}  // namespace ringdp::comm
