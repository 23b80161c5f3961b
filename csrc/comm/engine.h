// Advances all groups of a process. Exactly one thread drives at a time: one that waits for a collective, otherwise the
// engine's own progress thread.
//
// The driver advances every group, so waiting for two groups in different orders cannot deadlock. Asynchronous work
// wakes the progress thread at once; the watch's tick finds work that no thread waits for.
#pragma once
#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "transport/arena.h"
#include "transport/doorbell.h"

namespace ringdp::comm {

// How a driver waits before it sleeps.
struct SpinPolicy {
  std::chrono::microseconds polls{0};  // how long it polls
  bool yields = false;                 // whether it yields its core after every poll, because peers may need it
};

// What the engine drives. All calls come from the driving thread, one at a time.
class Drivable {
 public:
  virtual ~Drivable() = default;
  virtual bool active() const = 0;  // has unfinished work (any thread)
  virtual bool advance() = 0;       // true when anything moved; never throws, never blocks
  virtual void check_time() = 0;    // deadlines and lateness; called when nothing moves
  // Before and after the driver sleeps; adds the descriptors that must wake it.
  virtual void set_asleep(bool asleep, std::vector<pollfd>& polls) = 0;
  virtual SpinPolicy spin_policy() const = 0;
  // The driver begins to wait: moves its thread away from a core that a peer uses.
  virtual void leave_shared_core() = 0;
};

class Engine {
 public:
  Engine();
  ~Engine();  // joins the progress thread; must not run with a lock that a completion needs (the GIL)

  // Any thread may call the following.
  const transport::Doorbell& doorbell() const { return doorbell_; }

  void add(std::shared_ptr<Drivable> group);
  void remove(const Drivable* group);  // the driver may still use the group in its current pass

  // Drives, or waits while another thread does, until done() or the deadline; returns done().
  bool wait(const std::function<bool()>& done, Deadline deadline);
  void kick();      // there is work that no thread may be waiting for: wakes the progress thread
  void announce();  // work has finished: waiters check again
  bool any_active();
  // When the process ends: waits until no thread drives, but not beyond the deadline. From then on only a caller of
  // wait() drives: what a driver frees may be Python's, which other threads must not touch once Python is finalized.
  void end(Deadline deadline);

 private:
  using Groups = std::vector<std::shared_ptr<Drivable>>;
  void progress_loop();
  bool drive(const std::function<bool()>& done, Deadline deadline);
  void sleep(const Groups& groups, Deadline deadline);
  Groups snapshot();

  transport::Doorbell doorbell_;
  std::mutex mutex_;
  std::condition_variable changed_;  // the driver has returned, or work has finished
  std::condition_variable kicked_;   // wakes the progress thread
  Groups groups_;
  std::atomic<uint64_t> version_{0};  // of groups_
  int waiters_ = 0;
  bool driving_ = false;
  bool kick_ = false;
  bool ended_ = false;
  bool stop_ = false;
  std::thread progress_;
};

// The cores in `usable` that no peer uses, if a peer is on `here`; empty when this thread can stay.
std::vector<int> free_cores(const std::vector<int>& usable, int here, const std::vector<int>& of_peers);

// Called by a driver that begins to wait. Moves its thread to another core when a member of the arena was last seen on
// this one, and publishes the new core, so that the other rank does not move as well.
//
// The kernel often wakes a thread on the waker's core, and separates two ranks that take turns there only every few
// milliseconds: on 2 cores, one all_reduce of 16 MiB in ten took 5 to 10 ms instead of 1.7. The thread's affinity is
// changed only during the call.
void leave_shared_core(transport::Arena& arena);

}  // namespace ringdp::comm
