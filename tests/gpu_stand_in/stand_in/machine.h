// The devices there are, by the environment, read once:
//   STAND_IN_DEVICES=2          how many; the same number is the same device in every process of the machine
//   STAND_IN_MULTIPROCESSORS=4  blocks that a device holds at once, of all kernels of a process
//   STAND_IN_LACKS=ipc,fd,stream_waits   what they cannot do: legacy IPC, sharing by descriptor, 64-bit stream waits
// Every process has all of a device's multiprocessors: contexts of processes are time slices, here the host's.
#pragma once
#include <cstddef>
#include <string>

namespace stand_in {

constexpr size_t kDeviceBytes = size_t{1} << 30;
constexpr int kThreadsOfBlock = 2;  // host threads, however many a launch asks for

struct Machine {
  int devices = 2, multiprocessors = 4;
  bool ipc = true, fd = true, stream_waits = true;
};
const Machine& machine();  // throws Refusal for a value that is none

// Throws Refusal when there is no such device; of the calling thread.
void set_device(int device);
int current_device();

}  // namespace stand_in
