// The tokens of an episode, read again by the engine with a policy of choice: how likely it finds each of them
// now, and how open the choice was. Nothing of it is stored.

import { lines } from "./api.js";
import { offer } from "./branch.js";
import { h, problem, replace } from "./dom.js";

const COPY = { message: "This is a copy of a run, without an engine that could read its tokens.", hint: "Open the page at a service that has the run." };

// A row that asks for scores, which `take` gets by agent and segment.
export function scoring(jobId, seats, take) {
  const policy = h("select", { "aria-label": "Policy that reads the tokens" }, h("option", { value: "" }, "the job's newest version"));
  const said = h("span", { class: "small quiet", role: "status" }, "A forward pass of the engine over the episode's tokens, at temperature 1; nothing is stored.");
  const read = h("button", { type: "button", onclick: () => score() }, "Read the tokens again");
  const several = offer(policy, jobId).then((agents) => agents.size > 1);

  async function score() {
    read.disabled = true;
    said.textContent = "reads…";
    try {
      const [name, version] = policy.value.split("@"), byAgent = await several;
      const requests = seats.flatMap((seat, at) => seat.segments.map((segment, number) => ({
        request_id: `${at} ${number}`, policy: name || (byAgent ? `${jobId}/${seat.agent}` : jobId), policy_version: version === undefined ? null : Number(version),
        prompt_ids: segment.token_ids, images: segment.images, max_tokens: 1, prompt_logprobs: true, prompt_entropies: true,
      })));
      let failed = null, versions = new Set(), without = false;
      for (const request of requests) { // One by one: a long episode would exceed what one call may ask for.
        for await (const line of lines("/v1/sample", { requests: [request] })) {
          if (line.error) { failed = line.error; continue; }
          const [at, number] = line.request_id.split(" ").map(Number);
          take(seats[at].agent, number, { logprobs: line.prompt_logprobs, entropies: line.prompt_entropies });
          versions.add(line.policy_version);
          without ||= !line.prompt_entropies;
        }
      }
      if (failed) throw failed;
      said.textContent = `read by ${policy.value || "the newest version"}${policy.value.includes("@") ? "" : `, ${[...versions].join(", ")}`}${without ? "; this engine has no entropies" : ""}`;
    } catch (error) {
      replace(said, problem(error.message.startsWith("there is no route") ? COPY : error));
    }
    read.disabled = false;
  }

  return h("div", { class: "scoring" }, h("label", null, "by ", policy), " ", read, " ", said);
}
