// Numbers and times as text. Unknown (null) is "–" everywhere, never 0.
import { UNKNOWN } from "./text.js";

const SIZES = [
  [1e9, "GB"],
  [1e6, "MB"],
  [1e3, "kB"],
];

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const threeDigits = (value) => String(Number(value.toPrecision(3)));

/** Bytes: 6060000000 -> "6.06 GB". The same text as the command line writes. */
export function bytes(count) {
  if (!isNumber(count)) return UNKNOWN;
  for (const [size, name] of SIZES) {
    if (Math.abs(count) >= size) {
      const value = count / size;
      return `${Math.abs(value) < 100 ? threeDigits(value) : value.toFixed(0)} ${name}`;
    }
  }
  return `${count} B`;
}

/** Bytes a second: 1200000 -> "1.2 MB/s". */
export const rate = (perSecond) =>
  isNumber(perSecond) ? `${bytes(Math.round(perSecond))}/s` : UNKNOWN;

/** A whole number with thousands apart: 16384 -> "16,384". */
export const count = (value) => (isNumber(value) ? Math.round(value).toLocaleString("en") : UNKNOWN);

/** Seconds: 0.25 -> "250 ms", 4.2 -> "4.2 s", 95 -> "1 min 35 s". */
export function seconds(value) {
  if (!isNumber(value)) return UNKNOWN;
  if (value < 1) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** How long something takes or took, in whole seconds: 95 -> "1:35", 4000 -> "1:06:40". */
export function duration(value) {
  if (!isNumber(value)) return UNKNOWN;
  const whole = Math.max(0, Math.floor(value));
  const two = (part) => String(part).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** A loss: three decimals, more for small ones: 3.0912 -> "3.091", 0.00123 -> "0.00123". */
export function loss(value) {
  if (!isNumber(value)) return UNKNOWN;
  return value !== 0 && Math.abs(value) < 0.1 ? threeDigits(value) : value.toFixed(3);
}

/** A share: 0.4213 -> "42 %". */
export const percent = (share) => (isNumber(share) ? `${Math.round(share * 100)} %` : UNKNOWN);

/** A signed change in percent: 0.034 -> "+3.4 %". */
export function change(share) {
  if (!isNumber(share)) return UNKNOWN;
  const shown = (share * 100).toFixed(1);
  return `${Number(shown) > 0 ? "+" : Number(shown) < 0 ? "−" : "±"}${shown.replace("-", "")} %`;
}

/** Time of day here: "14:03:22". */
export function clock(unixSeconds) {
  return isNumber(unixSeconds)
    ? new Date(unixSeconds * 1000).toLocaleTimeString("en-GB", { hour12: false })
    : UNKNOWN;
}

/** Day and time here: "29 Nov, 14:03". */
export function day(unixSeconds) {
  if (!isNumber(unixSeconds)) return UNKNOWN;
  const options = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" };
  return new Date(unixSeconds * 1000).toLocaleString("en-GB", options);
}

/** Day, time and year here, for a title: "29 November 2026 at 14:03:22". */
export function exact(unixSeconds) {
  if (!isNumber(unixSeconds)) return UNKNOWN;
  const options = { dateStyle: "long", timeStyle: "medium" };
  return new Date(unixSeconds * 1000).toLocaleString("en-GB", options);
}

/** How long ago: 3 -> "3 s ago", 7200 -> "2 h ago". */
export function ago(unixSeconds, nowSeconds) {
  if (!isNumber(unixSeconds)) return UNKNOWN;
  const past = Math.max(0, Math.round(nowSeconds - unixSeconds));
  if (past < 2) return "now";
  if (past < 60) return `${past} s ago`;
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86400) return `${Math.floor(past / 3600)} h ago`;
  return `${Math.floor(past / 86400)} d ago`;
}

/** The value for <time datetime>: UTC. */
export const iso = (unixSeconds) =>
  isNumber(unixSeconds) ? new Date(unixSeconds * 1000).toISOString() : "";

/** A setting's value as text: objects as JSON, nothing as "none". */
export function setting(value) {
  if (value === null || value === undefined) return "none";
  if (value === true) return "on";
  if (value === false) return "off";
  if (typeof value === "number") {
    const small = value !== 0 && Math.abs(value) < 0.001;
    return small ? value.toExponential().replace("e-", "e−") : String(value);
  }
  if (Array.isArray(value)) return value.map(setting).join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** Text from another machine without terminal codes and control characters, at most 2,000 long. */
export function plain(text) {
  return String(text ?? "")
    .replace(/\u001b\[[0-?]*[ -/]*[@-~]/g, "")
    .replace(/\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)/g, "")
    .replace(/\t/g, "    ")
    .replace(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/g, "")
    .slice(0, 2000);
}
