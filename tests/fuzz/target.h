// A fuzz target: one function of a file's bytes, which reads them as a parser of ringdp does and checks what comes of
// it.
//
// Linked with libfuzzer.cc a target is a program of libFuzzer's; tests/cpp/fuzz runs all of them over their corpora.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/link.h"

namespace ringdp::fuzz {

// Takes one file apart, from its begin on. Past its end there are zeros.
class Input {
 public:
  Input(const uint8_t* bytes, size_t size) : at_(bytes), left_(size) {}

  size_t left() const { return left_; }

  template <class Number>
  Number number() {
    Number value{};
    const size_t count = std::min(left_, sizeof value);
    if (count > 0) std::memcpy(&value, at_, count);
    skip(count);
    return value;
  }
  // One of 0..most.
  int up_to(int most) { return number<uint8_t>() % (most + 1); }

  std::string bytes(size_t most) {
    std::string taken(reinterpret_cast<const char*>(at_), std::min(left_, most));
    skip(taken.size());
    return taken;
  }
  std::string rest() { return bytes(left_); }

 private:
  void skip(size_t count) {
    at_ += count;
    left_ -= count;
  }

  const uint8_t* at_;
  size_t left_;
};

// The text with parts of it left out or others put in, as the rest of the input says.
inline std::string edited(std::string text, Input& input) {
  while (input.left() > 0 && !text.empty()) {
    const size_t at = input.number<uint16_t>() % text.size();
    const int removed = input.up_to(3);
    text.replace(at, static_cast<size_t>(removed), input.bytes(static_cast<size_t>(input.up_to(9))));
  }
  return text;
}

// What a target throws when ringdp has not kept a promise.
inline void require(bool kept, const char* promise) {
  if (!kept) throw std::logic_error(promise);
}

// Whether `parse` refuses, by an Error of one of these kinds; whatever else it throws is a finding.
template <class Parse>
bool refuses(std::initializer_list<ErrorKind> kinds, Parse&& parse) {
  try {
    parse();
    return false;
  } catch (const Error& error) {
    require(std::find(kinds.begin(), kinds.end(), error.kind()) != kinds.end(), error.what());
    return true;
  }
}

// Gives what the peer has sent, at most `piece` bytes at a time; takes everything, likewise.
class FromPeer final : public transport::Link {
 public:
  explicit FromPeer(size_t piece) : piece_(piece) {}
  std::string sent;

  size_t try_send(const void*, size_t size) override { return std::min(size, piece_); }
  size_t try_recv(void* bytes, size_t size) override {
    const size_t taken = std::min({size, piece_, sent.size()});
    if (taken == 0) return 0;  // an empty message has no memory
    std::memcpy(bytes, sent.data(), taken);
    sent.erase(0, taken);
    return taken;
  }
  const char* kind() const override { return "tcp"; }

 private:
  const size_t piece_;
};

struct Target {
  const char* name;  // the name of its program and of its corpus
  void (*run)(Input);
};

// All that are linked.
inline std::vector<Target>& targets() {
  static std::vector<Target> all;
  return all;
}

struct Register {
  explicit Register(Target target) { targets().push_back(target); }
};

}  // namespace ringdp::fuzz

#define FUZZ_TARGET(name)                                                      \
  static void fuzz_##name(::ringdp::fuzz::Input input);                        \
  static const ::ringdp::fuzz::Register register_##name({#name, fuzz_##name}); \
  static void fuzz_##name([[maybe_unused]] ::ringdp::fuzz::Input input)
