// Which names serve a checkpoint's version to requests of the OpenAI API, and letting one serve it.

import { get, part, put } from "./api.js";
import { confirmed, h, replace, toast } from "./dom.js";
import { percent } from "./format.js";

export const servedNames = async () => (await get("/v1/names")).names;

// The names that serve this version, with their share if another one has the rest.
export const namesFor = (names, reference) => names.flatMap((one) => {
  const share = one.policy === reference ? 1 - one.share : one.canary === reference ? one.share : 0;
  return share ? [h("div", { class: "small" }, "served as ", h("b", null, one.name), share < 1 ? ` for ${percent(share)} of the requests` : "")] : [];
});

export async function promoted(reference, suggested, onchange) {
  const names = await servedNames();
  const now = h("p", { class: "quiet small", role: "status" });
  const share = h("input", { type: "number", min: 0.1, max: 100, step: "any", value: 100, class: "narrow" });
  const describe = () => {
    const one = names.find(({ name: known }) => known === name.value);
    replace(now, !one ? "This name serves nothing yet: it begins with 100 %." : `It serves ${one.policy}${one.canary ? ` and tries ${one.canary} for ${percent(one.share)}` : ""}. Below 100 %, ${one.policy} keeps the rest; 100 % ends the trial.`);
  };
  const name = h("input", { value: suggested, maxlength: 100, list: "served-names", oninput: describe });
  describe();
  const fields = h("div", null,
    h("datalist", { id: "served-names" }, names.map((one) => h("option", { value: one.name }))),
    h("p", null, h("label", null, "Name, the model of requests ", name)), h("p", null, h("label", null, "Share of the requests, in % ", share)), now);
  const explanation = `Programs that ask for the name get ${reference} from the next request on.`;
  if (!(await confirmed("Let a name serve this checkpoint?", explanation, "Promote it", fields))) return;
  if (!name.value) return toast("Write a name; requests have it as model.", true);
  try {
    const made = await put(`/v1/names/${part(name.value)}`, { policy: reference, share: Number(share.value) / 100 });
    toast(`${made.name} serves ${made.policy}${made.canary ? `, and ${made.canary} for ${percent(made.share)} of the requests` : ""}.`);
    onchange();
  } catch (error) {
    toast(`${error.message} ${error.hint ?? ""}`, true);
  }
}
