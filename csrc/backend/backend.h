// The c10d backend "ringdp": checks a call, describes it, hands it to the group, returns a Work.
//
// Only the long-standing names of c10d::Backend are overridden, so one source serves torch 2.11 to 2.15. Calls may come
// from any thread; collectives of one group run in the order of the calls. Everything that is not overridden is refused
// by c10d by name ("Backend ringdp does not support ...").
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "backend/completion.h"
#include "backend/options.h"
#include "backend/work.h"
#include "comm/group.h"

namespace ringdp::backend {

class Backend : public c10d::Backend {
 public:
  // Collective over the group's ranks: returns once all are connected. `name` must be equal on all ranks.
  Backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const std::string& name,
          c10::intrusive_ptr<GroupOptions> options);
  ~Backend() override;

  const std::string getBackendName() const override { return "ringdp"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr reduce_scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;

  void setSequenceNumberForGroup() override {}  // sequence numbers start at 0 on every rank anyway
  uint64_t getSequenceNumberForGroup() override { return group_->sequence(); }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  c10d::ErrorType getError() override;
  void abort() override;     // idempotent
  void shutdown() override;  // idempotent, bounded

  const comm::Group& group() const { return *group_; }

 private:
  // One collective ready to go.
  struct Call {
    c10d::OpType type;
    const char* title;
    comm::OpDesc desc;
    collective::Buffers buffers;
    std::vector<at::Tensor> inputs;  // for the profiler
    Work::Result result;
    std::vector<at::Tensor> keep;
    std::function<void()> epilogue;
    std::chrono::milliseconds timeout;
    bool asynchronous;
  };
  WorkPtr run(Call call);
  WorkPtr gather_into(std::vector<at::Tensor> outputs, const at::Tensor& input, Call call);
  WorkPtr scatter_from(const at::Tensor& output, std::vector<at::Tensor> inputs, const c10d::ReduceOp& op, Call call);

  c10::intrusive_ptr<GroupOptions> options_;
  std::shared_ptr<comm::Group> group_;
};

}  // namespace ringdp::backend
