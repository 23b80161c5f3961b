// Steps the pieces of one bucket with its means as they come: reduction, update and new parameters in one sweep.
#pragma once
#include <memory>
#include <vector>

#include "reducer/shard_sink.h"
#include "zero/steps.h"

namespace ringdp::zero {

// Where in the bucket's shard a piece of `steps` lies, in elements.
struct PlacedPiece {
  int64_t offset = 0;
  Steps steps;
  size_t piece = 0;
};

// For buckets of float32. What no piece covers is padding, and gradients that nobody steps. RuntimeError where pieces
// overlap.
std::shared_ptr<reducer::ShardSink> step_sink(std::vector<PlacedPiece> pieces);

}  // namespace ringdp::zero
