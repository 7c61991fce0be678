// The service's HTTP API, as any client uses it; the browser adds the session's cookie.

export class ApiError extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.hint = error.hint;
  }
}

async function answered(method, path, body) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new ApiError(0, { message: "The service does not answer.", hint: "It may be restarting; this page tries again." });
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

const call = async (...request) => (await answered(...request)).json().catch(() => null);

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
