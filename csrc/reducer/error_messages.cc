#include "reducer/error_messages.h"

#include <algorithm>
#include <sstream>

namespace ringdp::reducer {
namespace {

std::string unused_hint(const Circumstances& now) {
  if (now.static_graph) {
    return "This error indicates that your training graph has changed in this iteration, e.g., one parameter is used "
           "in first iteration, but then got unused in the second iteration. this is not compatible with static_graph "
           "set to True.";
  }
  const std::string outputs = "making sure all `forward` function outputs participate in calculating loss. ";
  if (now.find_unused) {
    return "Since `find_unused_parameters=True` is enabled, parameters outside the graph of the outputs are not "
           "waited for, so an output was not used. You can fix this by " +
           outputs;
  }
  return "This error indicates that your module has parameters that were not used in producing loss. You can enable "
         "unused parameter detection by passing the keyword argument `find_unused_parameters=True` to "
         "DistributedDataParallel, and by " +
         outputs;
}

}  // namespace

const char* const kAfterAnException =
    "If the backward pass ended with an exception on all ranks, call ddp.abandon_backward(), and go on with the next "
    "forward pass";

std::string listed(const std::vector<std::string>& names, size_t most) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), most); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
  return text;
}

std::string gradients_of(const std::vector<std::string>& names, const std::vector<size_t>& indices) {
  constexpr size_t kMostNamed = 3;
  std::vector<std::string> of_bucket;
  for (const size_t index : indices) of_bucket.push_back(names[index]);
  return "the gradients of " + listed(of_bucket, kMostNamed);
}

std::string unfinished(const Circumstances& now, const std::vector<std::string>& names,
                       const std::vector<size_t>& indices) {
  std::ostringstream text;
  text << "Expected to have finished reduction in the prior iteration before starting a new one. " << unused_hint(now)
       << "\nParameters which did not receive grad for rank " << now.rank << ": " << listed(names)
       << "\nParameter indices which did not receive grad for rank " << now.rank << ":";
  for (size_t i = 0; i < std::min(indices.size(), kMostNames); ++i) text << " " << indices[i];
  // torch's reducer names parameters only in that mode; tools that know its message look for this sentence.
  text << "\nFor more about the group than these names, set the environment variable "
          "TORCH_DISTRIBUTED_DEBUG to either INFO or DETAIL";
  return text.str();
}

std::string interrupted() {
  return "The last backward pass was ended by an exception while gradients were being averaged: other ranks may still "
         "do that, in the memory of its buckets.";
}

std::string first_static_pass_unfinished() {
  return "Expected to have finished reduction in the prior iteration before starting a new one: static_graph=True "
         "learns the graph from the first synchronised backward pass, which has not completed. Either it has "
         "failed, or no output of `forward` was a tensor that needs a gradient: return tensors in lists, tuples, "
         "dicts or dataclasses that torch knows as pytrees, or leave static_graph out.";
}

std::string marked_twice(const std::string& name, size_t index) {
  return "Expected to mark a variable ready only once. Parameter at index " + std::to_string(index) + " with name " +
         name +
         " has been marked as ready twice: its gradient arrived again after it was complete. Likely causes: 1) the "
         "parameter is used outside `forward`, or in several forward-backward passes at once; 2) several reentrant "
         "checkpoints share it (use_reentrant=False, or static_graph=True when the graph does not change); 3) an "
         "output of `forward` is hidden from the search for unused parameters, so the parameter was taken for unused: "
         "return tensors in lists, tuples, dicts or dataclasses.";
}

std::string came_late(const std::string& name) {
  return "the gradient of " + name +
         " has not been averaged with the other ranks: it was added to outside of a synchronised pass. Likely causes: "
         "1) "
         "backward ran twice on one forward pass, or several forward passes came before the first of their backward "
         "passes: only the first backward is averaged, so add the losses and call backward once, or run all pairs of "
         "passes but the last under no_sync(); 2) the model was called as ddp.module(...) and not as ddp(...).";
}

std::string graph_changed(const std::string& name) {
  return "Your training graph has changed from the first iteration: the gradient of " + name +
         " was computed more often than in that iteration. This is not compatible with static_graph set to True.";
}

}  // namespace ringdp::reducer
