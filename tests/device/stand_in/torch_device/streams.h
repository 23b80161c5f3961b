// The stand-in's streams as torch numbers them: on each device 0 is the null stream, 1 to 7 are for tests, and the pool
// gives the others up to 63 again and again. A stream that torch has not made has its address as its number.
#pragma once
#include <c10/core/Stream.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "stand_in/machine.h"
#include "stand_in/stream.h"

namespace stand_in {

constexpr int kStreams = 64;  // of a device
constexpr int kForTests = 8;

inline Stream& stream_at(int device, int64_t number) {
  if (number == 0) return null_stream(device);
  if (number >= kStreams) return known(reinterpret_cast<Stream*>(number));
  static std::mutex mutex;
  static auto* const made = new std::map<std::pair<int, int64_t>, Stream*>;
  const std::lock_guard lock(mutex);
  Stream*& stream = (*made)[{device, number}];
  if (stream == nullptr) stream = create_stream(device);
  return *stream;
}

inline Stream& stream_of(const c10::Stream& s) { return stream_at(s.device_index(), s.id()); }

inline int64_t next_of_pool() {
  static std::atomic<int64_t> next{0};
  return kForTests + next++ % (kStreams - kForTests);
}

// The current device as torch has it: where a guard ends and the device before has no context, the thread keeps the one
// it has and only means the other.
inline thread_local int meant_device = -1;  // -1: the thread's own

inline int torch_device() { return meant_device < 0 ? current_device() : meant_device; }

inline void set_torch_device(int device) {
  meant_device = -1;
  if (device != current_device()) set_device(device);
}

inline void set_torch_device_if_used(int device) {
  if ((contexts() >> device & 1u) != 0) return set_torch_device(device);
  meant_device = device;
}

inline int exchange_torch_device(int device) {
  const int before = torch_device();
  const bool is_set = meant_device < 0 && before == device;
  meant_device = -1;
  if (!is_set) set_device(device);
  return before;
}

inline thread_local std::array<int64_t, 8> current_streams = {};  // of this thread, by device

inline Stream& current_stream(int device) { return stream_at(device, current_streams.at(device)); }

}  // namespace stand_in
