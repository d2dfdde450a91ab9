#include "sampling/expansion.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <utility>

#include "graph/radix_sort.h"
#include "sampling/edge_choice.h"
#include "sampling/relabel_table.h"

namespace diskgnn {

template <typename Id, bool kTrees>
Expansion<Id, kTrees>::Expansion(DrawRequest request, const GraphFiles& files)
    : request_(std::move(request)),
      files_(files),
      tree_times_(tree_times(request_)),
      nodes_(files.num_nodes.size()),
      orders_(files.num_nodes.size()),
      turns_(files.relations.size()) {
  if (request_.fanouts.size() % turns_.size() != 0) throw std::invalid_argument("fanouts: expected one per edge type");
  insert_seeds<Id, kTrees>(request_, files.num_nodes, nodes_);
}

template <typename Id, bool kTrees>
bool Expansion<Id, kTrees>::scans(std::size_t number) const {
  const RelationFiles& relation = files_.relations[number];
  return scans_lists(request_, files_.has_times(relation), relation.weights.has_value(), relation.by_time);
}

template <typename Id, bool kTrees>
bool Expansion<Id, kTrees>::is_chosen(std::size_t number, std::int64_t node) const {
  return scans(number) || !request_.excluded_of(number, node).empty();
}

template <typename Id, bool kTrees>
bool Expansion<Id, kTrees>::keeps_candidates(std::size_t number) const {
  return scans(number) || wants_positions(number) || request_.excludes(number);
}

template <typename Id, bool kTrees>
std::uint64_t Expansion<Id, kTrees>::memory_bytes() const {
  std::uint64_t bytes = 0;
  for (const PageArray<Key>& nodes : nodes_) bytes += nodes.capacity() * sizeof(Key);
  for (const std::vector<std::int32_t>& order : orders_) bytes += order.capacity() * 4;
  for (const SampledLayer& layer : layers_) {
    for (const SampledBlock& block : layer) {
      bytes += (block.indptr.capacity() + block.indices.capacity()) * 4 + block.positions.capacity() * 8;
    }
  }
  for (const Turn& turn : turns_) {
    bytes += (turn.indptr.capacity() + turn.filled.capacity()) * 4 + (turn.drawn ? turn.drawn->bytes().size() : 0);
  }
  return bytes;
}

template <typename Id, bool kTrees>
std::uint64_t Expansion<Id, kTrees>::turn_bytes(std::size_t number) const {
  return turns_[number].num_drawn() * (keeps_candidates(number) ? sizeof(Candidate) : sizeof(Key));
}

template <typename Id, bool kTrees>
std::uint64_t Expansion<Id, kTrees>::drawn_bytes() const {
  std::uint64_t bytes = 0;
  for (std::size_t number = 0; number < turns_.size(); ++number) {
    bytes += turn_bytes(number);
    if (keeps_candidates(number)) bytes += turns_[number].indptr.size() * 4;
  }
  return bytes;
}

template <typename Id, bool kTrees>
std::uint64_t Expansion<Id, kTrees>::num_drawn_from(std::size_t type) const {
  std::uint64_t num_drawn = 0;
  for (std::size_t number = 0; number < turns_.size(); ++number) {
    if (static_cast<std::size_t>(files_.relations[number].source) == type) num_drawn += turns_[number].num_drawn();
  }
  return num_drawn;
}

template <typename Id, bool kTrees>
std::uint64_t Expansion<Id, kTrees>::max_nodes(std::size_t type) const {
  const std::uint64_t nodes = nodes_[type].size() + num_drawn_from(type);
  return kTrees ? nodes : std::min(nodes, static_cast<std::uint64_t>(files_.num_nodes[type]));
}

template <typename Id, bool kTrees>
std::uint64_t Expansion<Id, kTrees>::relabel_bytes() const {
  std::uint64_t bytes = 0, passing = 0;
  for (std::size_t type = 0; type < nodes_.size(); ++type) {
    bytes += RelabelTable<Key>::bytes_for(max_nodes(type)) + max_nodes(type) * sizeof(Key);
  }
  for (std::size_t number = 0; number < turns_.size(); ++number) {
    const std::uint64_t num_drawn = turns_[number].num_drawn();
    bytes += num_drawn * (wants_positions(number) ? 12 : 4);
    if (kTrees || keeps_candidates(number)) passing = std::max(passing, num_drawn * sizeof(Key));
  }
  return bytes + passing;
}

template <typename Id, bool kTrees>
std::uint64_t Expansion<Id, kTrees>::next_layer_bytes() const {
  std::uint64_t bytes = memory_bytes();
  for (std::size_t type = 0; type < nodes_.size(); ++type) bytes += max_nodes(type) * (sizeof(Key) + 4);
  for (std::size_t number = 0; number < turns_.size(); ++number) {
    bytes += max_nodes(static_cast<std::size_t>(files_.relations[number].destination)) * 4;
    bytes += turns_[number].num_drawn() * (wants_positions(number) ? 12 : 4);
  }
  return bytes;
}

template <typename Id, bool kTrees>
void Expansion<Id, kTrees>::start_layer() {
  struct Record {
    Id node;
    std::int32_t position;
  };
  std::vector<bool> wanted(nodes_.size());
  for (std::size_t number = 0; number < turns_.size(); ++number) {
    const auto destination = static_cast<std::size_t>(files_.relations[number].destination);
    if (fanout(number) != 0) wanted[destination] = true;
    turns_[number].indptr.assign(nodes_[destination].size() + 1, 0);
  }
  for (std::size_t type = 0; type < nodes_.size(); ++type) {
    if (!wanted[type]) continue;
    const std::size_t first = request_.expand_once && !counts_.empty() ? counts_.back()[type] : 0;
    std::vector<Record> records(nodes_[type].size() - first), scratch;
    for (std::size_t i = 0; i < records.size(); ++i) {
      records[i] = {static_cast<Id>(node_of(type, first + i)), static_cast<std::int32_t>(first + i)};
    }
    radix_sort(records, scratch, std::bit_width(static_cast<std::uint64_t>(files_.num_nodes[type])),
               [](const Record& record) { return static_cast<std::uint64_t>(record.node); });
    orders_[type].resize(records.size());
    for (std::size_t i = 0; i < records.size(); ++i) orders_[type][i] = records[i].position;
  }
}

template <typename Id, bool kTrees>
void Expansion<Id, kTrees>::finish_counting() {
  for (Turn& turn : turns_) {
    std::int64_t total = 0;
    for (std::int32_t& offset : turn.indptr) {
      total += offset;
      if (total > std::numeric_limits<std::int32_t>::max()) throw_too_many_edges();
      offset = static_cast<std::int32_t>(total);
    }
  }
}

template <typename Id, bool kTrees>
void Expansion<Id, kTrees>::allocate_drawn() {
  for (std::size_t number = 0; number < turns_.size(); ++number) {
    Turn& turn = turns_[number];
    if (turn.indptr.empty()) throw std::logic_error("draw comes after count");
    turn.drawn.emplace(static_cast<std::size_t>(turn_bytes(number)));
    if (keeps_candidates(number)) turn.filled.assign(turn.indptr.size() - 1, 0);
  }
}

template <typename Id, bool kTrees>
std::span<const std::int32_t> Expansion<Id, kTrees>::between(std::size_t type, std::int64_t first,
                                                             std::int64_t last) const {
  const std::vector<std::int32_t>& order = orders_[type];
  const auto precedes = [this, type](std::int32_t position, std::int64_t node) {
    return node_of(type, static_cast<std::size_t>(position)) < node;
  };
  const auto begin = std::lower_bound(order.begin(), order.end(), first, precedes);
  return {begin, std::lower_bound(begin, order.end(), last, precedes)};
}

template <typename Id, bool kTrees>
auto Expansion<Id, kTrees>::drawn_sources(std::size_t number, PageArray<std::int64_t>& positions) -> PageArray<Key> {
  Turn& turn = turns_[number];
  if (!keeps_candidates(number)) {
    const std::span<const Key> drawn(reinterpret_cast<const Key*>(turn.drawn->bytes().data()), turn.num_drawn());
    return {drawn.begin(), drawn.end()};
  }
  const std::span<Candidate> drawn(reinterpret_cast<Candidate*>(turn.drawn->bytes().data()), turn.num_drawn());
  const auto destination = static_cast<std::size_t>(files_.relations[number].destination);
  PageArray<Key> sources;
  sources.reserve(drawn.size());
  if (wants_positions(number)) positions.reserve(drawn.size());
  std::int32_t begin = 0;
  for (std::size_t i = 0; i + 1 < turn.indptr.size(); ++i) {
    const std::int32_t end = turn.indptr[i + 1];
    std::span<Candidate> of_node =
        drawn.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    if (is_chosen(number, node_of(destination, i))) {
      of_node = of_node.first(static_cast<std::size_t>(turn.filled[i]));
      sort_by_position(of_node);
    }
    for (const Candidate& each : of_node) {
      sources.push_back(static_cast<Key>(each.source));
      if (wants_positions(number)) positions.push_back(each.position);
    }
    begin = end;
    turn.indptr[i + 1] = static_cast<std::int32_t>(sources.size());
  }
  return sources;
}

template <typename Id, bool kTrees>
void Expansion<Id, kTrees>::relabel() {
  if (!turns_[0].drawn) throw std::logic_error("relabel comes after draw");
  orders_.assign(nodes_.size(), {});
  std::vector<std::size_t> counts;
  for (const PageArray<Key>& nodes : nodes_) counts.push_back(nodes.size());
  std::vector<RelabelTable<Key>> tables(nodes_.size());
  for (std::size_t type = 0; type < nodes_.size(); ++type) {
    if (num_drawn_from(type) == 0) continue;
    nodes_[type].reserve(max_nodes(type));
    tables[type].restart(nodes_[type], max_nodes(type));
  }
  SampledLayer layer(turns_.size());
  for (std::size_t number = 0; number < turns_.size(); ++number) {
    const RelationFiles& relation = files_.relations[number];
    const auto source = static_cast<std::size_t>(relation.source);
    const auto destination = static_cast<std::size_t>(relation.destination);
    Turn& turn = turns_[number];
    SampledBlock& block = layer[number];
    PageArray<Key> sources = drawn_sources(number, block.positions);
    turn.drawn.reset();
    turn.filled = {};
    block.indptr = std::move(turn.indptr);
    turn.indptr = {};
    if constexpr (kTrees) {
      enter_trees(block.indptr, nodes_[destination], files_.num_nodes[destination], files_.num_nodes[source], sources);
    }
    block.indices.resize(sources.size());
    tables[source].insert_all(sources, nodes_[source], block.indices);
  }
  for (PageArray<Key>& nodes : nodes_) nodes.shrink_to_fit();
  layers_.push_back(std::move(layer));
  counts_.push_back(std::move(counts));
}

template <typename Id, bool kTrees>
SampledMinibatch<Id> Expansion<Id, kTrees>::take() {
  std::vector<PageArray<Key>> nodes(nodes_.size());
  nodes.swap(nodes_);
  return finished_minibatch<Id, kTrees>(std::move(nodes), std::exchange(layers_, {}), counts_, files_.num_nodes);
}

template class Expansion<std::int32_t, false>;
template class Expansion<std::int32_t, true>;
template class Expansion<std::int64_t, false>;
template class Expansion<std::int64_t, true>;

}  // namespace diskgnn
