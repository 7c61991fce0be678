// What each metric means, in one sentence, and which charts a run's page draws.

import { duration, percent } from "./format.js";

// Title, sentence, names (a final * stands for any ending), options.
export const CHARTS = [
  ["Reward", "Mean return of each step's completed episodes; failed ones do not count as 0. Evaluations are points with their 95 % interval.", ["reward_mean", "seat/*/reward_mean"], { evaluations: true }],
  ["Loss", "What the update minimized. In policy optimization its size says little; a jump says more.", ["loss", "policy/*/loss"]],
  ["KL to the initial policy", "How far the policy has moved from where it started, in nats per token. A steep rise often comes before collapse.", ["kl", "policy/*/kl"]],
  ["Entropy", "Mean negative logprob of the sampled tokens. Close to 0 the policy always says the same and learns nothing new.", ["sampled_entropy", "policy/*/sampled_entropy"]],
  ["Completion length", "Sampled tokens of a completion: mean, and the longest of the step.", ["completions/mean_length", "completions/max_length"], { fromZero: true }],
  ["Cut and empty completions", "Share of completions that a token limit cut, and of those without text. Cut ones end in the middle of a thought.", ["completions/clipped_ratio", "completions/empty_ratio", "episodes/cut_ratio"], { format: percent, fromZero: true }],
  ["Why episodes ended", "Episodes of the step by stop reason.", ["stop/*"], { stacked: true }],
  ["Groups without differences", "Groups whose episodes all earned the same: they teach nothing. All of them mean that the task is solved or too hard.", ["zero_variance_groups", "broken_groups"], { fromZero: true }],
  ["Learner against engine", "Largest difference of the two logprobs of a sampled token, in nats. Above the job's threshold it stops: it would learn from other tokens than were sampled.", ["parity_max", "policy/*/parity_max"], { fromZero: true }],
  ["Gradient and clipping", "Norm of the gradient before clipping, and the share of tokens whose ratio was clipped.", ["grad_norm", "clip_fraction"], { fromZero: true }],
  ["Learning rate", "As it took effect at each step.", ["learning_rate", "policy/*/learning_rate"]],
  ["Speed", "Sampled tokens per second of the whole step, of the engine's time, and trained tokens per second of the learner's.", ["tokens_per_second", "tokens_per_second/sampling", "tokens_per_second/learning"], { fromZero: true }],
  ["Time of a step by phase", "Seconds of each step by what they went to. What is not named is waiting.", ["time/*"], { stacked: true, format: duration }],
  ["Staleness", "How many versions behind the newest the sampled tokens are.", ["staleness_mean", "staleness_max"], { fromZero: true }],
  ["Environment", "What the environment reports about an episode, as means over the step.", ["env/*"]],
];

// Names of what the page of a run reads at once.
export const ALWAYS = [...new Set(["seconds_left", "steps", ...CHARTS.flatMap(([, , patterns]) => patterns)])];

export const matches = (pattern, name) => pattern === name
  || (pattern.includes("*") && name.startsWith(pattern.split("*")[0]) && name.endsWith(pattern.split("*")[1]) && name.length >= pattern.length);

export const namesOf = (patterns, names) => patterns.flatMap((pattern) => names.filter((name) => matches(pattern, name)));

const OTHERS = {
  reward_std: "Standard deviation of the step's returns; at 0 nothing can be learned from them.",
  episodes: "Episodes of the step that ended, failed ones included.", failed_episodes: "Episodes that failed; they are not trained on.", retried_episodes: "Episodes that failed before and were played again.",
  turns: "Completions of the step.", records: "Records of the dataset in the step.", sampled_tokens: "Tokens that policies wrote in the step.", trained_tokens: "Tokens that the loss was computed on.",
  step_seconds: "Seconds of the whole step.", sampling_seconds: "Seconds in which the engine worked.", learning_seconds: "Seconds in which the learner worked.",
  "used/hours": "Hours with a place so far, which a budget limits.", "used/tokens": "Sampled and trained tokens so far, which a budget limits.",
  ratio_mean: "Mean importance ratio of the trained tokens; far from 1 the update learns from what another policy sampled.", ratio_max: "Largest importance ratio of a trained token.",
  clip_low_fraction: "Share of tokens whose ratio was clipped from below.", clip_high_fraction: "Share of tokens whose ratio was clipped from above.",
  logprob_gap_mean: "Mean difference of the learner's and the engine's logprob of a token, in nats.", logprob_gap_max: "Largest difference of the learner's and the engine's logprob of a token, in nats.",
  parity_mean: "Mean difference of the two logprobs over the tokens that are compared again, in nats.", compared_groups: "Groups with at least two completed episodes, whose returns can be compared.",
  replaced_groups: "Groups that were replaced because they taught nothing.", skipped_updates: "Updates that were left out because their gradient was exactly 0.", shared_fraction: "Share of the learner's tokens that were computed once for several completions.",
  overlong_penalty_mean: "Mean penalty for completions close to the limit.", truncated_fraction: "Share of completions that a limit cut and that are left out of the loss.", value_grad_norm: "Norm of the value head's gradient before clipping.",
  reverse_kl: "Distance of the student from the teacher on the student's own tokens, in nats per token.", accuracy: "Share of pairs in which the policy prefers the chosen completion.", reward_margin: "By how much the chosen completion wins, in the loss's own reward.",
  reward_chosen: "The loss's own reward of the chosen completions.", reward_rejected: "The loss's own reward of the rejected completions.", logprob_chosen: "Mean logprob of the chosen completions.", logprob_rejected: "Mean logprob of the rejected completions.",
  nll_per_token: "Mean negative logprob of the trained tokens; e to its power is the perplexity.", "eval/*": "On records that are held out, before the step's update or after the last.", "guard/*": "What the collapse guard looks at: returns against anchors and the others, entropy, drawn and long games.",
  "staleness_*_tokens": "Sampled tokens that were this many versions old.", "completions/*": "Lengths and shares over the step's trained completions, in tokens.", "episodes/*": "Means over the step's episodes.", "*metrics_left_out": "Metrics beyond the limit of a step, which are not recorded.",
};

// The sentence of any metric: of its chart, or of its own, without whose it is.
export function explained(name) {
  const bare = name.replace(/^(policy|seat|environment)\/[^/]+\//, ""), whose = name === bare ? "" : `Of ${name.split("/").slice(0, 2).join(" ")}: `;
  const other = Object.hasOwn(OTHERS, bare) ? OTHERS[bare] : CHARTS.find(([, , patterns]) => patterns.some((one) => matches(one, bare)))?.[1] ?? Object.entries(OTHERS).find(([pattern]) => matches(pattern, bare))?.[1];
  return whose + (other ?? "A metric of this kind of job or of its pack, as it is in the step's event.");
}

// What is usually done about an alarm.
export const ADVICE = {
  failed: "The job ended with this error.",
  failed_episodes: "They are excluded. Open one to see its traceback.",
  completions_cut: "Raise sampling.max_turn_tokens, or reward shorter answers.",
  equal_rewards: "The task is solved, or too hard, or its reward too coarse.",
  evaluation_overlap: "Evaluate on a part that is held out.",
  idle: "Play more episodes at once (groups_per_step, executor=\"process\"), make the environment faster, or keep the client connected.",
  entropy_falls: "Lower the learning rate, add an entropy bonus or a KL penalty, or stop at an earlier checkpoint.",
  parity_drift: "The engine samples less and less what is trained: look at the chart of learner against engine. Beyond parity_threshold the job stops.",
  stale_tokens: "Lower max_staleness, or play faster: the learner learns from what old versions did.",
  collapse_entropy: "Lower the learning rate, add an entropy bonus or a KL penalty, or stop at an earlier checkpoint.",
  tokens_not_sampled: "The certificate names the episodes.",
};
