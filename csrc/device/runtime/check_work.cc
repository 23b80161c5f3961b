#include "device/runtime/check_work.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace ringdp::gpu {
namespace {

using plan::DeviceRef;
using plan::DeviceSpace;
using plan::DeviceStep;
using plan::DeviceVerb;

using plan::kDevicePackBytes;
constexpr int64_t kMostElements = int64_t{1} << 48;  // so that no count of bytes overflows

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::kInvalidArgument, "device work: " + what); }

// A field's name, or what makes it: every launch is checked, and no name is made unless it is refused.
std::string text_of(const char* field) { return field; }
template <class Field>
std::string text_of(const Field& field) {
  return field();
}
auto element_of(const char* array, int index) {
  return [=] { return std::string(array) + "[" + std::to_string(index) + "]"; };
}
struct FieldOfStep {
  int index;
  const char *field, *of_it;
  std::string operator()() const { return "step " + std::to_string(index) + ": " + field + of_it; }
};

template <class Field>
void check_range(const Field& field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return;
  refuse("invalid value " + std::to_string(value) + " for " + text_of(field) + " (expected " + std::to_string(low) +
         ".." + std::to_string(high) + ")");
}

template <class Field>
void check_address(const Field& field, const void* address, size_t alignment = kDevicePackBytes) {
  if (address == nullptr) refuse(text_of(field) + " is null");
  if (reinterpret_cast<uintptr_t>(address) % alignment == 0) return;
  refuse(text_of(field) + " is not " + std::to_string(alignment) + "-byte aligned");
}

void check_ranks(int rank, int world) {
  check_range("world", world, 1, plan::kMaxDeviceRanks);
  check_range("rank", rank, 0, world - 1);
}

const void* buffer_of(const Work& work, DeviceSpace space, int rank) {
  switch (space) {
    case DeviceSpace::kInput:
      return work.input[rank];
    case DeviceSpace::kOutput:
      return work.output[rank];
    case DeviceSpace::kStage:
      return work.stage[rank];
    case DeviceSpace::kPushed:
      return work.pushed[rank];
  }
  return nullptr;
}

class StepCheck {
 public:
  StepCheck(const Work& work, int index, DType element)
      : work_(work), step_(work.step[index]), index_(index), element_(element) {}

  void check() const {
    switch (step_.verb) {
      case DeviceVerb::kPost:
        return check_flag(step_.peer);
      case DeviceVerb::kAwait:
        return check_flag(work_.rank);
      case DeviceVerb::kSum:
      case DeviceVerb::kCopy:
        return check_data(step_.from, step_.to);
      case DeviceVerb::kAdd:
        return check_data(step_.from, step_.to), check_ref("addend", step_.addend);
      case DeviceVerb::kPush:
        return check_count(), check_ref("from", step_.from), check_pushed();
      case DeviceVerb::kSumPushed:
        return check_data(step_.from, step_.to), check_pushed();
    }
    refuse(named("verb ")() + std::to_string(static_cast<int>(step_.verb)) + " is none");
  }

 private:
  FieldOfStep named(const char* field, const char* of_it = "") const { return {index_, field, of_it}; }
  void check_flag(int holder) const {
    check_range(named("peer"), step_.peer, 0, work_.world - 1);
    check_range(named("slot"), step_.slot, 0, plan::kMaxDeviceSlots - 1);
    check_range(named("value"), step_.value, 1, static_cast<int64_t>(kValuesPerEpoch) - 1);
    check_address(element_of("flags", holder), work_.flags[holder], alignof(Flags));
  }
  void check_count() const {
    check_range(named("count"), step_.count, 0, kMostElements);
    if (step_.count * size_of(element_) % kDevicePackBytes != 0) {
      refuse(named("")() + std::to_string(step_.count) + " elements of " + name_of(element_) +
             " are no whole packs of 16 bytes");
    }
  }
  void check_ref(const char* which, const DeviceRef& ref) const {
    const int64_t size = size_of(ref.wide ? wide_of(element_) : element_);
    check_range(named(which, " offset"), ref.offset, 0, kMostElements);
    if (ref.offset * size % kDevicePackBytes != 0) {
      refuse(named(which, " offset ")() + std::to_string(ref.offset) + " is inside a pack of 16 bytes");
    }
    if (ref.rank >= 0) check_range(named(which, " rank"), ref.rank, 0, work_.world - 1);
    const int own = ref.rank == plan::kOwnRank ? work_.rank : ref.rank;
    for (int r = 0; r < work_.world && step_.count > 0; ++r) {
      if (own != r && own != plan::kAllRanks) continue;
      const auto buffer = [&] { return named(which, " of rank ")() + std::to_string(r); };
      check_address(buffer, buffer_of(work_, ref.space, r));
    }
  }
  void check_data(const DeviceRef& from, const DeviceRef& to) const {
    check_count();
    check_ref("from", from);
    check_ref("to", to);
  }
  // Marked words take twice the tensor's bytes, once per epoch parity.
  void check_pushed() const {
    check_range(named("pushed_bytes"), work_.pushed_bytes, 2 * step_.count * size_of(element_), INT64_MAX);
    for (int r = 0; r < work_.world; ++r) check_address(element_of("pushed", r), work_.pushed[r]);
  }

  const Work& work_;
  const DeviceStep& step_;
  const int index_;
  const DType element_;
};

using plan::DeviceStep;
using plan::DeviceVerb;

bool adds(const DeviceStep& step) {
  return step.verb == DeviceVerb::kSum || step.verb == DeviceVerb::kAdd || step.verb == DeviceVerb::kSumPushed;
}

}  // namespace

void check_work(const Work& work, DType element) {
  check_ranks(work.rank, work.world);
  check_range("blocks", work.blocks, 0, kMaxBlocks);
  check_range("steps", work.steps, 0, plan::kMaxDeviceSteps);
  check_range("deadline_ns", static_cast<int64_t>(work.deadline_ns), 1, INT64_MAX);
  check_address("epoch", work.epoch, alignof(Epoch));
  check_address("abort", work.abort, alignof(uint32_t));
  for (int r = 0; r < work.world && work.aborts[work.rank] != nullptr; ++r) {
    check_address(element_of("aborts", r), work.aborts[r], alignof(uint32_t));
  }
  check_address("expired", work.expired, alignof(Expired));
  for (int s = 0; s < work.steps; ++s) StepCheck(work, s, element).check();
}

void check_spin_work(const Work& work) {
  if (work.blocks == 0) refuse("blocks is 0; for the executor SPIN all ranks launch the same number of them, from 1");
}

void check_stream_work(const Work& work) {
  if (work.stream_epoch == 0) refuse("stream_epoch is 0; for the executor STREAM the host counts launches from 1");
  for (int s = 0; s < work.steps; ++s) {
    const DeviceVerb verb = work.step[s].verb;
    if (verb == DeviceVerb::kPush || verb == DeviceVerb::kSumPushed) {
      refuse("step " + std::to_string(s) + " waits for pushed packs inside a kernel, which the executor STREAM is " +
             "there to avoid; use the algorithm one_shot or direct");
    }
  }
}

void check_adam_work(const AdamWork& work) {
  check_ranks(work.rank, work.world);
  check_range("count", work.count, 0, kMostElements);
  check_address("abort", work.abort, alignof(uint32_t));
  check_address("epoch", work.epoch, alignof(Epoch));
  if (work.count == 0) return;
  for (int r = 0; r < work.world; ++r) {
    check_address(element_of("gradients", r), work.gradients[r]);
    const bool wanted = r == work.rank || work.parameters[r] != nullptr;
    if (wanted) check_address(element_of("parameters", r), work.parameters[r]);
  }
  const int states = work.scalars.amsgrad ? 3 : 2;
  for (int k = 0; k < states; ++k) check_address(element_of("state", k), work.state[k]);
}

void check_codec_work(const CodecWork& work) {
  const int wire = static_cast<int>(work.wire);
  check_range("wire", wire, static_cast<int>(WireType::kBf16), kWireTypeCount - 1);
  check_range("count", work.count, 0, kMostElements);
  if (work.encodes) check_range("held", work.held, 0, work.count);
  if (!is_floating(work.element)) refuse(std::string("element ") + name_of(work.element) + " is no real floating type");
  if (work.count == 0) return;
  check_address("from", work.from);
  check_address("to", work.to);
}

bool only_moves(const Work& work) { return std::none_of(work.step, work.step + work.steps, adds); }

void count_as_float32(Work& work, DType element) {
  const int64_t from = size_of(element), to = size_of(DType::kF32);
  for (int s = 0; s < work.steps; ++s) {
    DeviceStep& step = work.step[s];
    for (int64_t* const elements : {&step.count, &step.from.offset, &step.to.offset}) *elements = *elements * from / to;
  }
}

}  // namespace ringdp::gpu
