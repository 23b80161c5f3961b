#include "stand_in/machine.h"

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <sstream>
#include <string>
#include <string_view>

#include "stand_in/kernel.h"
#include "stand_in/memory.h"
#include "stand_in/stream.h"

namespace stand_in {
namespace {

thread_local int device_of_thread = 0, context_of_thread = kNoContext;
std::atomic<unsigned> contexts_made{0};    // one bit for each device
thread_local int calls_until_failure = 0;  // 0: none fails
thread_local bool all_after_fail = false;
thread_local const char* failed_call = nullptr;

std::string text_of(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int number_of(const char* name, int otherwise, int low, int high) {
  const std::string text = text_of(name);
  if (text.empty()) return otherwise;
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (*end == '\0' && value >= low && value <= high) return static_cast<int>(value);
  const std::string expected = std::to_string(low) + ".." + std::to_string(high);
  throw Refusal(cudaErrorInvalidValue, "invalid value '" + text + "' for " + name + " (expected " + expected + ")");
}

Machine by_environment() {
  Machine machine;
  machine.devices = number_of("STAND_IN_DEVICES", machine.devices, 0, 8);
  machine.multiprocessors = number_of("STAND_IN_MULTIPROCESSORS", machine.multiprocessors, 1, 64);
  machine.connections = number_of("CUDA_DEVICE_MAX_CONNECTIONS", machine.connections, 1, 32);
  machine.is = text_of("STAND_IN_IS");
  if (!machine.is.empty() && machine.is != "mig" && machine.is != "mps") {
    throw Refusal(cudaErrorInvalidValue,
                  "invalid value '" + machine.is + "' for STAND_IN_IS (expected one of: mig, mps)");
  }
  std::istringstream lacks(text_of("STAND_IN_LACKS"));
  for (std::string what; std::getline(lacks, what, ',');) {
    const std::map<std::string, bool*> known = {{"ipc", &machine.ipc},
                                                {"fd", &machine.fd},
                                                {"stream_waits", &machine.stream_waits},
                                                {"flush", &machine.flush},
                                                {"barriers", &machine.barriers},
                                                {"peers", &machine.peers},
                                                {"peer_writes", &machine.peer_writes},
                                                {"peer_copies", &machine.peer_copies}};
    const auto found = known.find(what);
    if (found == known.end()) {
      throw Refusal(
          cudaErrorInvalidValue,
          "invalid value '" + what +
              "' for STAND_IN_LACKS (expected one of: ipc, fd, stream_waits, flush, barriers, peers, peer_writes, "
              "peer_copies)");
    }
    *found->second = false;
  }
  return machine;
}

}  // namespace

const Machine& machine() {
  static const Machine instance = by_environment();
  return instance;
}

namespace {

void check_device(int device) {
  if (machine().devices == 0) throw Refusal(cudaErrorNoDevice, "STAND_IN_DEVICES is 0");
  if (device < 0 || device >= machine().devices) {
    throw Refusal(cudaErrorInvalidDevice, "there is no device " + std::to_string(device));
  }
}

}  // namespace

void set_device(int device) {
  check_device(device);
  device_of_thread = device;
  set_context(device);
}

int current_device() {
  const int device = context_of_thread == kNoContext ? device_of_thread : context_of_thread;
  check_device(device);
  return device;
}

void need_context() { set_context(current_device()); }

int context() { return context_of_thread; }

void set_context(int device) {
  if (device != kNoContext) contexts_made |= 1u << device;
  context_of_thread = device;
}

unsigned contexts() { return contexts_made; }

namespace {
std::mutex& copying() {
  static auto* const instance = new std::mutex;
  return *instance;
}
}  // namespace

CopyToHost::CopyToHost() { copying().lock(); }
CopyToHost::~CopyToHost() { copying().unlock(); }
void wait_for_copies_to_host() { const CopyToHost none; }

namespace {
struct Counted {
  std::mutex mutex;  // guards the rest
  std::condition_variable changed;
  std::map<std::string, int64_t, std::less<>> calls;
  std::string held, without_memory;  // the next call of that name waits; has no memory left
  bool waits = false;                // one does
};
Counted& counted() {
  static auto* const instance = new Counted;
  return *instance;
}
}  // namespace

void count(const char* what) {
  const std::lock_guard lock(counted().mutex);
  ++counted().calls[what];
}

void note(const char* call) {
  if (call == nullptr) return;
  {
    std::unique_lock lock(counted().mutex);
    ++counted().calls[call];
    if (counted().held == call) {
      counted().held.clear();
      counted().waits = true;
      counted().changed.notify_all();
      counted().changed.wait(lock, [] { return !counted().waits; });
    }
    if (counted().without_memory == call) {
      counted().without_memory.clear();
      throw std::bad_alloc();
    }
  }
  if (calls_until_failure == 0 || --calls_until_failure > 0) return;
  if (all_after_fail) calls_until_failure = 1;
  if (failed_call == nullptr) failed_call = call;
  throw Refusal(cudaErrorIllegalState, "a test has this call fail");
}

}  // namespace stand_in

// What tests do that the interface of libringdp_gpu.so leaves to its caller: devices, streams and captures.

using namespace stand_in;

extern "C" {

void stand_in_set_device(int device) { set_device(device); }
int stand_in_context() { return context(); }
unsigned stand_in_contexts() { return contexts(); }
size_t stand_in_pinned_bytes() { return pinned_bytes(); }
size_t stand_in_streams() { return created_streams(); }
size_t stand_in_copied_bytes() { return copied_bytes(); }
size_t stand_in_launched_blocks() { return launched_blocks(); }
size_t stand_in_launched_arguments() { return launched_arguments(); }
// How often this process has called that function of CUDA, or used that operation of a batch; launches of kernels are
// "launch_on_host_threads". Also "a copy on a stream without kernels".
int64_t stand_in_calls(const char* name) {
  const std::lock_guard lock(counted().mutex);
  const auto found = counted().calls.find(std::string_view(name));
  return found == counted().calls.end() ? 0 : found->second;
}
bool stand_in_is_lost(int device) { return is_lost(device); }
size_t stand_in_held() { return held_parts() + held_virtually() + created_streams(); }

// The k-th call of this thread from now on fails, once; -k: so do all after it, as when a device is lost; 0: none does.
void stand_in_fail(int k) {
  calls_until_failure = k < 0 ? -k : k;
  all_after_fail = k < 0;
  failed_call = nullptr;
}
// The next call of that name, of any thread, throws std::bad_alloc, as whatever makes a string may.
void stand_in_exhaust(const char* name) {
  const std::lock_guard lock(counted().mutex);
  counted().without_memory = name;
}

// The next call of that name, of any thread, waits for stand_in_let_go_call(), as a driver may that waits for a device.
void stand_in_hold_call(const char* name) {
  const std::lock_guard lock(counted().mutex);
  counted().held = name;
}
void stand_in_wait_for_held_call() {
  std::unique_lock lock(counted().mutex);
  counted().changed.wait(lock, [] { return counted().waits; });
}
void stand_in_let_go_call() {
  const std::lock_guard lock(counted().mutex);
  counted().waits = false;
  counted().changed.notify_all();
}

// The name of the first call that failed so; null as long as none has.
const char* stand_in_failed() { return failed_call; }

Stream* stand_in_create_stream() { return create_stream(current_device()); }
void stand_in_destroy_stream(Stream* stream) { destroy_stream(stream); }
void stand_in_synchronize_stream(Stream* stream) { known(stream).synchronize(); }

void stand_in_begin_capture(Stream* stream) { known(stream).begin_capture(); }
// What the stream was given since: to be replayed any number of times, and ended once. Null when there is no graph.
void* stand_in_end_capture(Stream* stream) {
  try {
    return new std::shared_ptr<Capture>(known(stream).end_capture());
  } catch (const Refusal&) {
    return nullptr;
  }
}
void stand_in_replay(void* graph, Stream* stream) {
  for (const Job& job : (*static_cast<std::shared_ptr<Capture>*>(graph))->jobs()) known(stream).push(job);
}
void stand_in_end_graph(void* graph) { delete static_cast<std::shared_ptr<Capture>*>(graph); }
}
