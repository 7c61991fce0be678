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

// What is usually done about an alarm.
export const ADVICE = {
  failed: "The job ended with this error.",
  failed_episodes: "They are excluded. Open one to see its traceback.",
  completions_cut: "Raise sampling.max_turn_tokens, or reward shorter answers.",
  equal_rewards: "The task is solved, or too hard, or its reward too coarse.",
  evaluation_overlap: "Evaluate on a part that is held out.",
  idle: "Play more episodes at once (groups_per_step, executor=\"process\"), make the environment faster, or keep the client connected.",
  entropy_falls: "Lower the learning rate, add an entropy bonus or a KL penalty, or stop at an earlier checkpoint.",
  collapse_entropy: "Lower the learning rate, add an entropy bonus or a KL penalty, or stop at an earlier checkpoint.",
  tokens_not_sampled: "The certificate names the episodes.",
};
