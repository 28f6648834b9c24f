#pragma once
// Keys of the section `security`; see visit.h.
#include "trainer/config/config.h"
#include "trainer/config/field.h"

namespace trireme {

template <class V>
void visit(V& v, AggregationConfig& c) {
  const bool mean = c.rule == AggregationRule::kMean;
  const char* const off = mean ? "rule is mean" : nullptr;
  v(Field{.key = "rule",
          .doc =
              "How the gradients of the data ranks become one. mean: their sum over all tokens. The others tolerate wrong gradients of byzantine "
              "data ranks and weigh all data ranks alike. median, trimmed_mean: of each element; krum: the gradient nearest to the others; "
              "multi_krum: the mean of the nearest ones; bulyan: a trimmed mean of those that krum chooses; geometric_median; centered_clipping: the "
              "mean, with no gradient farther than radius."},
    c.rule);
  v(Field{.key = "byzantine",
          .doc = "Number f of data ranks whose gradients may be faulty in any way. Needs at least 2f+1 data ranks; krum and multi_krum 2f+3, bulyan "
                 "4f+3. Gradients that are not finite and data ranks without a valid token count as faulty.",
          .min = 0,
          .max = kMaxExtent,
          .without_effect = off},
    c.byzantine);
  v(Field{.key = "momentum",
          .doc =
              "Each data rank's gradient is replaced by its moving average with this momentum before the rule, so that attackers cannot hide in the "
              "noise of a step. 0: none. centered_clipping needs it.",
          .min = 0,
          .max = 1,
          .below_max = true,
          .auto_rule = "0.9 for centered_clipping, otherwise 0",
          .without_effect = off},
    c.momentum);
  v(Field{.key = "radius",
          .doc = "centered_clipping: norm to which the difference of a data rank's gradient from the centre is shortened.",
          .min = 0,
          .above_min = true,
          .without_effect = mean                                           ? off
                            : c.rule == AggregationRule::kCenteredClipping ? nullptr
                                                                           : "only centered_clipping has a radius"},
    c.radius);
}

template <class V>
void visit(V& v, PrivacyConfig& c) {
  const char* const off = c.clip ? nullptr : "clip is null";
  v(Field{.key = "clip",
          .doc = "Differentially private training: norm to which the gradient of each sequence is clipped. The gradient of a sequence is that of its "
                 "loss divided by training.sequence_length. Steps then draw their sequences at random, training.global_batch_size on average. null: "
                 "training is not private.",
          .min = 0,
          .above_min = true,
          .or_null = true},
    c.clip);
  v(Field{.key = "noise",
          .doc =
              "Noise multiplier: the sum of a step's clipped gradients gets Gaussian noise with a standard deviation of noise * clip. With a robust "
              "rule or training.compression each data rank adds it to the sum of its own sequences. 0: none, which protects nothing. null: the least "
              "noise with which all steps of the run stay within target_epsilon.",
          .min = 0,
          .without_effect = off,
          .or_null = true},
    c.noise);
  v(Field{.key = "target_epsilon",
          .doc = "Budget: the run stops before the step that would exceed this epsilon. null: no budget.",
          .min = 0,
          .above_min = true,
          .without_effect = off,
          .or_null = true},
    c.target_epsilon);
  v(Field{.key = "delta",
          .doc = "Probability with which the bound of epsilon may fail; it should be far below 1 / (number of sequences).",
          .min = 0,
          .max = 1,
          .above_min = true,
          .below_max = true,
          .without_effect = off,
          .or_null = true},
    c.delta);
  v(operation_key({.key = "key_file",
                   .doc =
                       "File with the secret key from which each step's samples and noise are drawn: 32 to 4096 bytes, drawn at random, the same on "
                       "all hosts. It must belong to the user of the run and be readable by no one else.",
                   .without_effect = off,
                   .or_null = true}),
    c.key_file);
}

template <class V>
void visit(V& v, FederationConfig& c) {
  const char* const off = c.members > 0 ? nullptr : "members is 0";
  v(Field{.key = "members",
          .doc =
              "Number of members of a federation: each trains training.local.steps steps on its own data, which it never sends, and a coordinator "
              "takes an outer step on the mean of their updates. `trireme train` then starts the coordinator, and `trireme join ADDRESS` a member, "
              "all with the same model and training. 0: no federation. Needs a build with libsodium.",
          .min = 0,
          .max = 64},
    c.members);
  v(operation_key({.key = "rounds",
                   .doc = "Number of rounds of training.local.steps steps. 0: as many as training.steps has.",
                   .min = 0,
                   .max = kMaxExtent,
                   .without_effect = off}),
    c.rounds);
  v(operation_key({.key = "roster",
                   .doc = "File with the public keys of the federation, the same for all: a line with a name and a key, as `trireme audit keygen` "
                          "prints it, for each member, and one for the name coordinator.",
                   .without_effect = off,
                   .or_null = true}),
    c.roster);
  v(operation_key({.key = "identity_key_file",
                   .doc = "File with the Ed25519 secret key of this member or of the coordinator, made by `trireme audit keygen`. It must belong to "
                          "the user of the run and be readable by no one else.",
                   .without_effect = off,
                   .or_null = true}),
    c.identity_key_file);
  v(operation_key({.key = "address", .doc = "IPv4 address at which the coordinator listens. 0.0.0.0: at every interface.", .without_effect = off}),
    c.address);
  v(operation_key(
        {.key = "port", .doc = "Port at which the coordinator listens. 0: any that is free.", .min = 0, .max = 65535, .without_effect = off}),
    c.port);
  v(Field{.key = "secure",
          .doc = "Secure aggregation: members mask their updates, so that the coordinator learns only their sum. Needs two members in every round.",
          .without_effect = off},
    c.secure);
  v(Field{.key = "minimum",
          .doc = "Fewest members of a round; with fewer it is repeated. With secure aggregation it is also the number of members that must agree "
                 "before masks are removed, and more than half of all.",
          .min = 1,
          .max = 64,
          .auto_rule = "two thirds of the members, rounded down, and one more; 1 without secure",
          .without_effect = off},
    c.minimum);
  v(operation_key(
        {.key = "wait_seconds", .doc = "How long a round waits for members beyond the fewest.", .min = 0, .max = kMaxExtent, .without_effect = off}),
    c.wait_seconds);
  v(operation_key({.key = "round_seconds",
                   .doc = "A member that takes longer for the steps of a round, or does not answer for as long, has left the round.",
                   .min = 1,
                   .max = kMaxExtent,
                   .without_effect = off}),
    c.round_seconds);
  v(Field{.key = "weighting",
          .doc = "What the update of a member counts: equal, or as many as it has training sequences (samples).",
          .without_effect = off},
    c.weighting);
  v(Field{.key = "clip",
          .doc = "Norm to which each member shortens its update. null: no limit.",
          .min = 0,
          .above_min = true,
          .without_effect = off,
          .or_null = true},
    c.clip);
  v(Field{.key = "noise",
          .doc = "Noise multiplier for the privacy of whole members: the sum of a round gets Gaussian noise with a standard deviation of at least "
                 "noise * clip, of which every member adds a part. null: none.",
          .min = 0,
          .above_min = true,
          .without_effect = c.clip ? off : "clip is null",
          .or_null = true},
    c.noise);
  v(Field{.key = "delta",
          .doc = "Probability with which the bound of the epsilon of members may fail.",
          .min = 0,
          .max = 1,
          .above_min = true,
          .below_max = true,
          .without_effect = c.noise ? off : "noise is null",
          .or_null = true},
    c.delta);
  v(Field{.key = "max_loss_increase",
          .doc =
              "Verification before release: every member evaluates the new weights on its data.validation. If the loss grows by more than this, in "
              "nats, the round is refused: the weights stay what they were. The growth is the upper median over the members. null: only a loss that "
              "is not finite is refused. Not with noise, because refusals would tell about held-out data.",
          .min = 0,
          .without_effect = off,
          .or_null = true},
    c.max_loss_increase);
  v(Field{.key = "max_update_norm",
          .doc = "A round whose mean update has a larger norm is refused. null: only one that is not finite is refused.",
          .min = 0,
          .above_min = true,
          .without_effect = off,
          .or_null = true},
    c.max_update_norm);
}

template <class V>
void visit(V& v, AuditConfig& c) {
  v(operation_key({.key = "enabled",
                   .doc =
                       "Rank 0 writes <run.directory>/audit.jsonl, a chain of hashes over what the run has done. Every checkpoint contains its head, "
                       "and `trireme audit verify` finds later changes. Needs a build with libsodium."}),
    c.enabled);
  v(operation_key({.key = "signing_key_file",
                   .doc =
                       "File with the Ed25519 secret key that signs the head in checkpoints and in the receipt, made by `trireme audit keygen`. It "
                       "must belong to the user of the run and be readable by no one else. null: no signatures.",
                   .without_effect = c.enabled ? nullptr : "audit.enabled is false",
                   .or_null = true}),
    c.signing_key_file);
}

template <class V>
void visit(V& v, SecurityConfig& c) {
  v.section("aggregation", "Aggregation of gradients over data ranks of which some may be faulty.", c.aggregation);
  v.section("privacy", "Differential privacy of the training data.", c.privacy);
  v.section("federation", "Rounds of training by members that keep their data.", c.federation);
  v(operation_key(
        {.key = "encryption",
         .doc = "required: what ranks on different hosts send each other is encrypted and authenticated by the key of key_file. That covers messages "
                "between CPU ranks, messages of GPU ranks that go through host memory, parameter servers, and the detection of lost ranks; NCCL "
                "between hosts is refused. Between hosts, parallel.collectives library then means auto. Needs a build with libsodium."}),
    c.encryption);
  v(operation_key({.key = "key_file",
                   .doc =
                       "File with the key that all hosts of the job share: 32 to 4096 bytes, drawn at random. It must belong to the user of the run "
                       "and be readable by no one else.",
                   .without_effect = c.encryption == Encryption::kRequired ? nullptr : "encryption is none",
                   .or_null = true}),
    c.key_file);
  v.section("audit", "A record of the run that shows later changes.", c.audit);
}

}  // namespace trireme
