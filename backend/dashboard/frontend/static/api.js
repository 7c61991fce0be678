// The service's HTTP API, as any client uses it; the browser adds the session's cookie.

export class ApiError extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.hint = error.hint;
  }
}

const AGAIN_MS = 2000, TRIES = 4;
let back = null;

// Where the answer is a proxy's, there is no service behind it.
const answers = (response) => response.status < 502 || response.headers.get("Content-Type")?.startsWith("application/json");

// Settles when the service answers again. One question serves all that wait; a thousand pages do not ask in step.
async function untilBack() {
  const told = document.getElementById("away");
  told.hidden = false;
  for (let there = false; !there;) {
    await new Promise((done) => setTimeout(done, AGAIN_MS * (0.5 + Math.random())));
    there = await fetch("/v1/health?sample=false").then(answers, () => false);
  }
  told.hidden = true;
  back = null;
}

// What only reads is asked again until there is an answer, or, where others are answered, a few times; what changes
// something may have arrived.
async function answered(method, path, body) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const ask = () => fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) }).catch(() => null);
  let response = await ask();
  for (let tries = 1; !response || !answers(response); tries += 1) {
    if (tries > TRIES) throw new ApiError(response?.status ?? 0, { message: "The service does not answer this, though it answers others.", hint: "A proxy before it may give up too early. Load the page again." });
    if (method !== "GET") throw new ApiError(0, { message: "The service does not answer.", hint: "It may be restarting: look whether it was done before you try again." });
    await (back ??= untilBack());
    response = await ask();
  }
  if (response.status === 401) {
    location.assign(`/dashboard/login?next=${encodeURIComponent(location.pathname)}`);
    return new Promise(() => {}); // The page is being left.
  }
  if (!response.ok) {
    const answer = await response.json().catch(() => null);
    throw new ApiError(response.status, answer?.error ?? { message: `The service answered with status ${response.status}.` });
  }
  return response;
}

async function call(method, path, body, tries = 1) {
  try {
    return await (await answered(method, path, body)).json();
  } catch (error) {
    if (error instanceof ApiError) throw error;
    if (method === "GET" && !(error instanceof SyntaxError) && tries < TRIES) return call(method, path, body, tries + 1); // It broke off.
    return null;
  }
}

// The JSON lines of an answer, each as it arrives.
export async function* lines(path, body) {
  const reader = (await answered("POST", path, body)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const all = (rest + part.value).split("\n");
    rest = all.pop();
    for (const line of all) if (line) yield JSON.parse(line);
  }
}

export const get = (path) => call("GET", path);
export const post = (path, body) => call("POST", path, body);
export const put = (path, body) => call("PUT", path, body);
export const part = encodeURIComponent;
export const job = (id, rest = "") => `/v1/jobs/${part(id)}${rest}`;
