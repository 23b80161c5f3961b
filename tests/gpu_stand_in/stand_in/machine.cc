#include "stand_in/machine.h"

#include <cstdlib>
#include <sstream>

#include "stand_in/refusal.h"

namespace stand_in {
namespace {

thread_local int device_of_thread = 0;

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
  const std::string accepted = std::to_string(low) + ".." + std::to_string(high);
  throw Refusal(cudaErrorInvalidValue, std::string(name) + "='" + text + "': accepted is " + accepted);
}

Machine by_environment() {
  Machine machine;
  machine.devices = number_of("STAND_IN_DEVICES", machine.devices, 0, 8);
  machine.multiprocessors = number_of("STAND_IN_MULTIPROCESSORS", machine.multiprocessors, 1, 64);
  std::istringstream lacks(text_of("STAND_IN_LACKS"));
  for (std::string what; std::getline(lacks, what, ',');) {
    if (what != "ipc" && what != "fd" && what != "stream_waits") {
      throw Refusal(cudaErrorInvalidValue, "STAND_IN_LACKS: '" + what + "'; accepted are ipc, fd and stream_waits");
    }
    (what == "ipc" ? machine.ipc : what == "fd" ? machine.fd : machine.stream_waits) = false;
  }
  return machine;
}

}  // namespace

const Machine& machine() {
  static const Machine instance = by_environment();
  return instance;
}

void set_device(int device) {
  if (machine().devices == 0) throw Refusal(cudaErrorNoDevice, "STAND_IN_DEVICES is 0");
  if (device < 0 || device >= machine().devices) {
    throw Refusal(cudaErrorInvalidDevice, "there is no device " + std::to_string(device));
  }
  device_of_thread = device;
}

int current_device() {
  set_device(device_of_thread);
  return device_of_thread;
}

}  // namespace stand_in
