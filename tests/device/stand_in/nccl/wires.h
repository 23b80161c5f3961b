// A socket to every other rank of a group, and the bytes that go side by side over them.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace stand_in {

struct Message {
  bool sends = false;
  char* memory = nullptr;
  size_t bytes = 0;
  int peer = 0;
};

class Wires {
 public:
  // Blocks until all ranks have come, without end, as NCCL does. `name`: of the group, on this machine.
  Wires(const std::string& name, int rank, int world);
  ~Wires();
  Wires(const Wires&) = delete;
  Wires& operator=(const Wires&) = delete;

  // As far as sockets let it go at once; what has moved is taken off. Those of one peer and direction keep their order.
  enum class Progress { kNone, kSome, kLost };  // kLost: a peer has gone
  Progress move(std::vector<Message>& messages);

 private:
  std::vector<int> sockets_;  // by rank, -1: own
};

}  // namespace stand_in
