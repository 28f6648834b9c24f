#include "tests/trace/shadow.h"

#include <algorithm>

namespace cuda_trace {
namespace {

bool same_warp(const Party& a, const Party& b) { return a.thread / 32 == b.thread / 32; }

}  // namespace

/// Only the later one of two releasing threads counts, which can but report too much.
void Seen::raise(const Seen& other) {
  if (other.thread == thread ? other.steps > steps : other.epoch >= epoch) {
    thread = other.thread;
    steps = other.steps;
    known = other.known;
  }
  epoch = std::max(epoch, other.epoch);
}

bool Shadow::ordered(const Party& earlier, const Party& now) const {
  if (earlier.block == 0 || (private_ && earlier.block != now.block) || (earlier.atomic && now.atomic)) return true;
  if (earlier.pending) return false;  // not even for the thread that copies
  if (earlier.block != now.block) {
    if (now.seen == nullptr) return false;
    const Seen& seen = (*now.seen)[earlier.block];
    return earlier.epoch < seen.epoch || (earlier.thread == seen.thread && earlier.step < seen.steps) ||
           (seen.known != nullptr && seen.known[earlier.thread / 32] > earlier.arrivals);
  }
  if (earlier.thread == now.thread || earlier.epoch < now.epoch || now.knows(earlier.thread, earlier.arrivals)) return true;
  return same_warp(earlier, now) && earlier.warp_epoch < now.warp_epoch;
}

void Shadow::add_reader(Cell& cell, const Party& now) const {
  Party &first = cell.readers[0], &second = cell.readers[1];
  if (private_ && first.block != now.block) first = second = {};
  if (first.block == 0) {
    first = now;
  } else if (first.block != now.block) {
    second = first;
    first = now;
  } else if (second.block != 0 && second.block != now.block) {
    keep(cell, first, now);
    first = now;
  } else if (first.epoch < now.epoch) {
    first = now;
    second = {};
    cell.others.reset();
  } else if (first.thread == now.thread) {
    first = now;
  } else if (same_warp(first, now) && (second.block == 0 || same_warp(second, now))) {
    second = first;
    first = now;
  } else if (second.block == 0 || same_warp(first, second)) {
    second = now;
  } else if (second.thread == now.thread) {
    second = now;
  } else {
    keep(cell, now, now);
  }
}

void Shadow::keep(Cell& cell, const Party& reader, const Party& now) {
  if (reader.block != now.block || reader.epoch < now.epoch) return;
  if (cell.others == nullptr) cell.others = std::make_unique<std::vector<Party>>();
  std::vector<Party>& others = *cell.others;
  if (!others.empty() && (others[0].block != now.block || others[0].epoch < now.epoch)) others.clear();
  Party* lanes[2] = {};
  for (Party& other : others)
    if (same_warp(other, reader)) lanes[lanes[0] != nullptr] = &other;
  if (lanes[1] == nullptr && (lanes[0] == nullptr || lanes[0]->thread != reader.thread)) {
    others.push_back(reader);
    return;
  }
  if (lanes[1] != nullptr && lanes[1]->thread != reader.thread) std::swap(*lanes[0], *lanes[1]);  // the older one goes
  *lanes[lanes[1] != nullptr] = reader;
}

void Shadow::complete(uintptr_t address, size_t bytes, const Party& now) {
  each(address, bytes, [&](Cell& cell) {
    if (cell.write.pending && cell.write.block == now.block && cell.write.thread == now.thread) {
      const Party started = cell.write;
      cell.write = now;
      cell.write.place = started.place;
      cell.write.atomic = started.atomic;
      cell.write.bulk = started.bulk;
    }
  });
}

Shadow::Page& Shadow::page(uintptr_t number) {
  if (last_page_ != nullptr && last_ == number) return *last_page_;
  std::unique_ptr<Page>& page = pages_[number];
  if (page == nullptr) page = std::make_unique<Page>();
  last_ = number;
  last_page_ = page.get();
  return *last_page_;
}

}  // namespace cuda_trace
