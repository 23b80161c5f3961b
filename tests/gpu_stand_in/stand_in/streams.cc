// Which streams there are, and what runs on them.
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>

#include "stand_in/machine.h"
#include "stand_in/refusal.h"
#include "stand_in/stream.h"

namespace stand_in {
namespace {

struct Streams {
  std::mutex mutex;  // guards the next two
  std::map<Stream*, std::shared_ptr<Stream>> created;
  std::map<int, std::shared_ptr<Stream>> null;  // by device
};

// Never destroyed: streams may run until the process ends.
Streams& streams() {
  static auto* const instance = new Streams;
  return *instance;
}

Queue& host_functions() {
  static auto* const instance = new Queue;
  return *instance;
}

thread_local bool in_host_function = false;
std::atomic<size_t> copied{0};

template <class Word>
void push_wait(Stream& stream, const Word* word, Word value) {
  stream.push([word, value] {
    while (static_cast<std::make_signed_t<Word>>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
}

}  // namespace

Stream* create_stream(int device) {
  const auto stream = std::make_shared<Stream>(device);
  const std::lock_guard lock(streams().mutex);
  streams().created[stream.get()] = stream;
  return stream.get();
}

void destroy_stream(Stream* stream) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  const auto found = all.created.find(stream);
  if (found == all.created.end()) throw Refusal(cudaErrorInvalidResourceHandle, "no stream, or destroyed already");
  all.created.erase(found);
}

Stream& null_stream(int device) {
  const std::lock_guard lock(streams().mutex);
  auto& stream = streams().null[device];
  if (!stream) stream = std::make_shared<Stream>(device);
  return *stream;
}

Stream& known(Stream* stream) {
  if (stream == nullptr) return null_stream(current_device());
  const std::lock_guard lock(streams().mutex);
  if (streams().created.count(stream)) return *stream;
  throw Refusal(cudaErrorInvalidResourceHandle, "no stream, or destroyed already");
}

namespace {

std::vector<std::shared_ptr<Stream>> streams_of(int device) {
  std::vector<std::shared_ptr<Stream>> its;
  const std::lock_guard lock(streams().mutex);
  for (const auto& [handle, stream] : streams().created) {
    if (stream->device == device) its.push_back(stream);
  }
  for (const auto& [number, stream] : streams().null) {
    if (stream->device == device) its.push_back(stream);
  }
  return its;
}

}  // namespace

void synchronize_device(int device) {
  for (const auto& stream : streams_of(device)) stream->synchronize();
}

void drain_device(int device) {
  for (const auto& stream : streams_of(device)) stream->drain();
}

void call_on_host(Stream& stream, void (*function)(void*), void* argument) {
  stream.push([function, argument] {
    const auto over = std::make_shared<Latch>();
    host_functions().push([=] {
      in_host_function = true;
      function(argument);
      over->open();
    });
    over->wait();
  });
}

bool is_in_host_function() { return in_host_function; }

void copy(Stream& stream, void* to, const void* from, size_t bytes) {
  copied += bytes;
  stream.push([=] { std::memmove(to, from, bytes); });
}

size_t copied_bytes() { return copied; }

void wait_value(Stream& stream, const uint32_t* word, uint32_t value) { push_wait(stream, word, value); }
void wait_value(Stream& stream, const uint64_t* word, uint64_t value) { push_wait(stream, word, value); }

void write_value(Stream& stream, uint64_t* word, uint64_t value) {
  stream.push([=] { __atomic_store_n(word, value, __ATOMIC_RELEASE); });
}

}  // namespace stand_in
