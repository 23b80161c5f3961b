// Test support: streams below a StripedLink that take, keep back and lose bytes as a test wants.
#pragma once
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"
#include "transport/tcp/striped_link.h"

namespace ringdp::transport {

// One direction of a stream.
struct Wire {
  Wire() : fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  // What poll(2) says of it.
  void set_writable(bool writable) {
    uint64_t count = 0;
    if (::read(fd.get(), &count, sizeof count) < 0) count = 0;
    count = std::numeric_limits<uint64_t>::max() - 1;
    if (!writable) {
      EXPECT_EQ(::write(fd.get(), &count, sizeof count), 8);
    }
  }

  UniqueFd fd;
  std::string bytes;            // on their way
  std::vector<size_t> offered;  // the size of each try_send()
  size_t room = std::numeric_limits<size_t>::max();
  size_t seen = std::numeric_limits<size_t>::max();                 // bytes that have arrived
  std::function<size_t(size_t)> some = [](size_t n) { return n; };  // how many of n bytes a call moves
  bool is_closed = false;                                           // behind its bytes
};

class FakeStream : public Link {
 public:
  FakeStream(Wire& out, Wire& in) : out_(out), in_(in) {}

  size_t try_send(const void* bytes, size_t size) override {
    if (out_.is_closed) lose();
    out_.offered.push_back(size);
    const size_t n = out_.some(std::min(size, out_.room));
    out_.bytes.append(static_cast<const char*>(bytes), n);
    out_.room -= n;
    return n;
  }
  size_t try_recv(void* bytes, size_t size) override {
    if (in_.is_closed && in_.bytes.empty()) lose();
    const size_t n = in_.some(std::min({size, in_.bytes.size(), in_.seen}));
    std::memcpy(bytes, in_.bytes.data(), n);
    in_.bytes.erase(0, n);
    in_.seen -= n;
    return n;
  }
  void add_polls(short events, std::vector<pollfd>& polls) const override {
    polls.push_back({events == POLLIN ? in_.fd.get() : out_.fd.get(), events, 0});
  }
  const char* kind() const override { return "fake"; }

 private:
  [[noreturn]] static void lose() { throw Error(ErrorKind::kPeerLost, "rank 7 is gone", 7); }

  Wire &out_, &in_;
};

// Two striped links, `there` sends and `here` receives; nothing goes back.
struct FakeStreams {
  explicit FakeStreams(size_t count, StripedLink::Options options = {7}) : wires(count), back(count) {
    std::vector<std::unique_ptr<Link>> near, far;
    for (size_t i = 0; i < count; ++i) {
      far.push_back(std::make_unique<FakeStream>(wires[i], back[i]));
      near.push_back(std::make_unique<FakeStream>(back[i], wires[i]));
    }
    there = std::make_unique<StripedLink>(std::move(far), options);
    here = std::make_unique<StripedLink>(std::move(near), options);
  }

  size_t send(const std::string& bytes) { return there->try_send(bytes.data(), bytes.size()); }
  std::string receive(size_t size) {
    std::string bytes(size, '\0');
    bytes.resize(here->try_recv(bytes.data(), size));
    return bytes;
  }
  // On that wire a stripe that no StripedLink has sent.
  void put(size_t wire, uint32_t number, const std::string& bytes) {
    put(wire, make_stripe_header(bytes.size(), number), bytes);
  }
  void put(size_t wire, const StripeHeader& header, const std::string& bytes) {
    wires[wire].bytes.append(reinterpret_cast<const char*>(&header), sizeof header).append(bytes);
  }

  std::vector<Wire> wires, back;
  std::unique_ptr<StripedLink> there, here;
};

}  // namespace ringdp::transport
