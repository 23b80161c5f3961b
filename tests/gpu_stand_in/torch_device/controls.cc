// What tests do to streams of the calling thread's current device by their numbers; stand_in/controls.cc has the rest.
#include <deque>
#include <map>

#include "streams.h"

namespace stand_in {
namespace {

Stream& numbered(int64_t number) { return stream_at(current_device(), number); }

struct Held {
  std::mutex mutex;  // guards by_stream
  std::map<Stream*, std::deque<std::shared_ptr<Latch>>> by_stream;
};

Held& held() {
  static auto* const instance = new Held;
  return *instance;
}

}  // namespace
}  // namespace stand_in

using namespace stand_in;

extern "C" {

// Its handle; null for the default stream.
Stream* stand_in_numbered(int64_t number) { return number == 0 ? nullptr : &numbered(number); }
void stand_in_use_stream(int64_t number) { current_streams.at(current_device()) = number; }
int64_t stand_in_current_stream() { return current_streams.at(current_device()); }
bool stand_in_is_idle(int64_t number) { return numbered(number).idle(); }
void stand_in_synchronize(int64_t number) { numbered(number).synchronize(); }

// What is queued on the stream from now on waits for stand_in_go().
void stand_in_hold(int64_t number) {
  const auto latch = std::make_shared<Latch>();
  Stream& stream = numbered(number);
  const std::lock_guard lock(held().mutex);
  held().by_stream[&stream].push_back(latch);
  stream.push([latch] { latch->wait(); });
}

void stand_in_go(int64_t number) {
  const std::lock_guard lock(held().mutex);
  auto& latches = held().by_stream[&numbered(number)];
  latches.front()->open();
  latches.pop_front();
}
}
