// Numbers, times and states as people read them.

export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(size >= 1e8 ? 0 : 1)} M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(size >= 1e5 ? 0 : 1)} k`;
  if (Number.isInteger(value)) return String(value);
  if (size !== 0 && size < 1e-3) return value.toExponential(1);
  return value.toFixed(size >= 100 ? 1 : digits);
}

export const whole = (value) => (value ?? 0).toLocaleString("en-US");

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.round(hours / 24)} days`;
}

export const ago = (time) => `${duration(Math.max(0, Date.now() / 1000 - time))} ago`;
export const clock = (time) => new Date(time * 1000).toLocaleString();
export const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;

export function bytes(size) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  while (size >= 1000 && at < units.length - 1) [size, at] = [size / 1000, at + 1];
  return `${at ? size.toFixed(1) : size} ${units[at]}`;
}

export const money = (cost) => `${cost.amount.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })} ${cost.currency}`.trim();

export const FINAL = new Set(["completed", "failed", "cancelled"]);
export const STATES = {
  queued: "queued", starting: "starting", running: "running", waiting_for_client: "waits for a client",
  paused: "paused", completed: "completed", failed: "failed", cancelled: "cancelled",
};
export const counted = (count, what) => `${whole(count)} ${what}${count === 1 ? "" : "s"}`;
export const words = (name) => name.replaceAll("_", " ");
