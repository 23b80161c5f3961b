// Moves all groups of a process forward. Exactly one thread drives at a time: a thread that waits for a collective,
// else the engine's own progress thread.
//
// Whoever drives advances every group, so two groups waited for in different orders cannot deadlock. Asynchronous work
// wakes the progress thread at once; work that nobody waits for is found by the watch's tick.
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
#include "transport/doorbell.h"

namespace ringdp::comm {

// How a driver waits before it sleeps.
struct Patience {
  std::chrono::microseconds polls{0};  // for so long
  bool yields = false;                 // the core at every turn, because peers may need it
};

// What the engine drives. All calls come from the driving thread, one at a time.
class Drivable {
 public:
  virtual ~Drivable() = default;
  virtual bool active() const = 0;   // has unfinished work (any thread)
  virtual bool advance() = 0;        // true when anything moved; never throws, never blocks
  virtual void check_time() = 0;     // deadlines and lateness; called when nothing moves
  // Before and after the driver sleeps; adds the descriptors that must wake it.
  virtual void set_asleep(bool asleep, std::vector<pollfd>& polls) = 0;
  virtual Patience patience() const = 0;
  virtual void step_aside() = 0;  // the driver begins to wait: its thread should leave a core on which a peer is
};

class Engine {
 public:
  Engine();
  ~Engine();  // joins the progress thread; never run it while holding a lock that a completion needs (the GIL)

  const transport::Doorbell& doorbell() const { return doorbell_; }

  void add(std::shared_ptr<Drivable> group);
  void remove(const Drivable* group);  // the driver may still hold the group for one pass

  // Drives (or waits for whoever does) until done() or the deadline; returns done().
  bool wait(const std::function<bool()>& done, Deadline deadline);
  void kick();      // there is work that nobody may wait for: the progress thread takes it
  void announce();  // something finished: waiters look again
  bool any_active();

 private:
  using Groups = std::vector<std::shared_ptr<Drivable>>;
  void progress_loop();
  bool drive(const std::function<bool()>& done, Deadline deadline);
  void sleep(const Groups& groups, Deadline deadline);
  Groups snapshot();

  transport::Doorbell doorbell_;
  std::mutex mutex_;
  std::condition_variable changed_;   // driver left, op finished
  std::condition_variable kicked_;    // progress thread's
  Groups groups_;
  std::atomic<uint64_t> version_{0};  // of groups_
  int waiters_ = 0;
  bool driving_ = false;
  bool kick_ = false;
  bool stop_ = false;
  std::thread progress_;
};

}  // namespace ringdp::comm
