// Numbers and times as people read them; what is not known is a dash.

const DASH = "–";

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export function seconds(value) {
  if (!known(value)) return DASH;
  if (value === 0) return "0 s";
  if (value < 0.0995) return `${(value * 1e3).toPrecision(2)} ms`;
  if (value < 0.9995) return `${Math.round(value * 1e3)} ms`;
  return value < 60 ? `${value.toPrecision(3)} s` : `${Math.round(value / 60)} min`;
}

export function percent(value) {
  if (!known(value)) return DASH;
  const shown = value * 100;
  return `${shown > 0.05 && shown < 10 ? shown.toFixed(1) : Math.round(shown)} %`;
}

export function attainment(value) {
  if (!known(value)) return DASH;
  return value === 1 ? "100 %" : `${(Math.floor(value * 1000) / 10).toFixed(1)} %`;
}

export function number(value, digits = 2) {
  if (!known(value)) return DASH;
  if (value !== 0 && Math.abs(value) < 0.01) return value.toPrecision(1);
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return Number.isInteger(value) ? String(value) : value.toFixed(digits);
}

export const loss = (value) => (known(value) ? value.toFixed(3) : DASH);

export const signed = (value) =>
  (known(value) ? `${value > 0 ? "+" : ""}${value.toFixed(4)}` : DASH);

export const integer = (value) => (known(value) ? Math.round(value).toLocaleString("en") : DASH);

const pad = (value) => String(value).padStart(2, "0");

/** Time of day of a moment in seconds since 1970. */
export function clock(atS, withSeconds = true) {
  if (!known(atS)) return DASH;
  const date = new Date(atS * 1e3);
  const minutes = `${pad(date.getHours())}:${pad(date.getMinutes())}`;
  return withSeconds ? `${minutes}:${pad(date.getSeconds())}` : minutes;
}

/** Time of day, with the day before it when that is not today. */
export function moment(atS) {
  if (!known(atS)) return DASH;
  const date = new Date(atS * 1e3);
  if (date.toDateString() === new Date().toDateString()) return clock(atS);
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day} ${clock(atS, false)}`;
}

export function duration(value) {
  if (!known(value)) return DASH;
  if (value < 100) return `${Math.round(value)} s`;
  if (value < 6000) return `${Math.round(value / 60)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}
