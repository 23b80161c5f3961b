// Records a group's collectives in the process's trace, and which rank made others wait.
//
// Any thread may call enqueued(), waited() and delays(), only the driver the rest. A rank sends the time that it waited
// in a collective in a later header, so every rank knows the waiting times of all ranks.
#pragma once
#include <string>
#include <vector>

#include "collective/executor.h"
#include "comm/pending.h"
#include "trace/counters.h"
#include "trace/recorder.h"

namespace ringdp::comm {

// The bytes of the tensor, or of all parts together; for an all_to_all, the bytes that this rank sends.
int64_t bytes_of(const OpDesc& desc, int world);

class GroupLog {
 public:
  // `members`: the global rank of each group rank. `recorder` must outlive the log. in_flight: how many collectives may
  // run at once; a header tells of the collective that is so many before its own, which has ended.
  GroupLog(trace::Recorder& recorder, const std::string& name, int rank, std::vector<int> members,
           size_t in_flight = 1);
  ~GroupLog() { recorder_.close(number_); }
  GroupLog(const GroupLog&) = delete;
  GroupLog& operator=(const GroupLog&) = delete;

  void enqueued(const OpDesc& desc, int64_t now_ns) const;
  void waited(int64_t since_ns) const;

  Remarks remarks(uint64_t seq, uint64_t digest) const { return {digest, waited_ns(seq)}; }  // for its header
  void started(const OpDesc& desc, int64_t now_ns);                                 // nothing before it runs any more
  void entered(int rank, const Remarks& theirs, int64_t now_ns = trace::now_ns());  // that rank has entered it
  void looked() { is_first_look_ = false; }  // this rank waits for ranks that enter from now on
  void running(const std::string& algorithm);
  void ended(const OpDesc& desc, const std::vector<collective::Backlog>& backlogs, bool failed) const;

  std::vector<int64_t> delays() const { return delays_.by_rank(); }  // any thread

 private:
  int64_t waited_ns(uint64_t seq) const { return waits_[seq % waits_.size()]; }
  trace::Event event_of(trace::Kind kind, const OpDesc& desc) const;
  void all_entered(int last, int64_t now_ns);

  trace::Recorder& recorder_;
  const int rank_, world_, number_;
  trace::Delays delays_;

  // By this rank, in ns, in the latest collectives: at its number modulo their count, the one so many before until all
  // ranks have entered it. -1: none.
  std::vector<int64_t> waits_;

  // The running collective; the first, if there are several.
  uint64_t seq_ = 0;
  int64_t started_ns_ = 0;
  bool is_first_look_ = false;
  int missing_ = 0;                     // ranks that have not entered it
  std::vector<int64_t> earlier_waits_;  // ns in the one of which its headers tell, by rank
  const char* algorithm_ = "";          // of its plan; "" before there is one
  const char* latest_algorithm_ = "";   // of the latest plan
};

}  // namespace ringdp::comm
