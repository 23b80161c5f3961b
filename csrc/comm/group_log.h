// What one group tells the process's recorder about its collectives, and who made whom wait.
//
// enqueued() and waited() come from any thread, the rest from the driver. Each collective's wait rides on the next one's
// note, so every rank knows those of all.
#pragma once
#include <string>
#include <vector>

#include "collective/executor.h"
#include "comm/op.h"
#include "trace/delays.h"
#include "trace/recorder.h"

namespace ringdp::comm {

// Of the tensor, or of all parts together; of an all_to_all what this rank sends.
int64_t bytes_of(const OpDesc& desc, int world);

class GroupLog {
 public:
  // `members`: of each rank of the group, its rank in the job.
  GroupLog(trace::Recorder& recorder, const std::string& name, int rank, std::vector<int> members);
  ~GroupLog() { recorder_.close(number_); }
  GroupLog(const GroupLog&) = delete;
  GroupLog& operator=(const GroupLog&) = delete;

  void enqueued(const OpDesc& desc, int64_t now_ns) const;
  void waited(int64_t since_ns) const;

  void started(const OpDesc& desc, int64_t now_ns);
  Remarks remarks(uint64_t digest) const { return {digest, waited_ns_}; }  // for its note
  void noted(int rank, const Remarks& theirs);  // that rank has entered it
  void looked() { is_first_look_ = false; }     // whoever comes from now on was waited for
  void running(const std::string& algorithm);
  void ended(const OpDesc& desc, const std::vector<collective::Backlog>& backlogs, bool failed) const;

  std::vector<int64_t> delays() const { return delays_.by_rank(); }  // any thread

 private:
  trace::Event event_of(trace::Kind kind, const OpDesc& desc) const;
  void all_noted(int last);

  trace::Recorder& recorder_;
  const int rank_, world_, number_;
  trace::Delays delays_;

  // Of the collective that runs.
  uint64_t seq_ = 0;
  int64_t started_ns_ = 0;
  bool is_first_look_ = false;
  int missing_ = 0;                     // ranks that have not entered it
  std::vector<int64_t> earlier_waits_;  // in the one before, by rank
  int64_t waited_ns_ = -1;              // this rank, in the one before until all have entered
  const char* algorithm_ = "";          // its plan's; "" before there is one
  const char* lasting_ = "";            // that of the latest plan
};

}  // namespace ringdp::comm
