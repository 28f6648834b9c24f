#pragma once
// Optimizers as element-wise rules, which every engine applies. A rule depends neither on neighbouring elements nor on the element's position, so any
// sharding gives the same bits. A new optimizer needs a struct here, a row in kernels/core/optimizer_traits.h, and a case in each of the two switches
// of update_step().
#ifdef __CUDACC__
#define TRIREME_HOST_DEVICE __host__ __device__
#else
#define TRIREME_HOST_DEVICE
#endif

namespace trireme {

/// The scalars of a step in the precision of the update: double for weights in double, else float.
template <class C>
struct UpdateScalars {
  C grad_scale;  ///< factor on every gradient: the clip factor / the loss scale
  C learning_rate;
  C beta1, beta2;
  C decay;  ///< 1 - learning_rate * weight_decay, or 1 for a parameter without decay
};

/// w -= lr (sign(b1 m + (1 - b1) g) + decay w);   m = b2 m + (1 - b2) g;   sign(0) = 0.
/// Source: Chen et al. 2023, arXiv:2302.06675, algorithm 2.
struct LionRule {
  static constexpr int kStates = 1;

  template <class C>
  TRIREME_HOST_DEVICE static void update(const UpdateScalars<C>& s, C g, C& w, C (&state)[kStates]) {
    C& m = state[0];
    const C gradient = g * s.grad_scale;
    const C direction = s.beta1 * m + (C(1) - s.beta1) * gradient;
    const C sign = direction > C(0) ? C(1) : direction < C(0) ? C(-1) : C(0);
    w = w * s.decay - s.learning_rate * sign;
    m = s.beta2 * m + (C(1) - s.beta2) * gradient;
  }
};

/// w -= lr (g + decay w): gradient descent without momentum. It has no state; an array of no elements is one of one.
struct SgdRule {
  static constexpr int kStates = 0;

  template <class C>
  TRIREME_HOST_DEVICE static void update(const UpdateScalars<C>& s, C g, C& w, C (&/*state*/)[1]) {
    w = w * s.decay - s.learning_rate * (g * s.grad_scale);
  }
};

/// w -= lr (u + decay w): applies the update u of a whole matrix (kernels/ops/muon.h), in which the clip factor and the state are already contained.
struct MatrixRule {
  static constexpr int kStates = 0;

  template <class C>
  TRIREME_HOST_DEVICE static void update(const UpdateScalars<C>& s, C u, C& w, C (&/*state*/)[1]) {
    w = w * s.decay - s.learning_rate * u;
  }
};

/// The length of an array of a rule's states.
template <class Rule>
constexpr int kStateRoom = Rule::kStates > 0 ? Rule::kStates : 1;

/// The share 1 - d of a new weight in the moving average: d = min(decay, (1 + t) / (10 + t)), with t the number of updates accepted before this one.
/// Early in a run the average is short, so that it soon forgets the initial weights. `accepted` includes this update.
/// Source of the warm-up: TensorFlow, tf.train.ExponentialMovingAverage with num_updates = t.
TRIREME_HOST_DEVICE inline double average_share(double decay, double accepted) {
  const double warm_up = accepted / (accepted + 9);
  return 1 - (decay < warm_up ? decay : warm_up);
}

/// e += share (w - e), with w the weight after the update.
struct AverageRule {
  template <class C>
  TRIREME_HOST_DEVICE static void update(C share, C w, C& e) {
    e += share * (w - e);
  }
};

}  // namespace trireme
