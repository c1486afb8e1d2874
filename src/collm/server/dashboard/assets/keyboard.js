// A chart is a slider over its times: whoever has no pointer reads the values of a moment by keys.

const STEPS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -30, PageUp: 30,
  Home: -Infinity, End: Infinity };

/** Let keys move what a chart shows the values of; they are its latest again when it is left. */
export function takeKeys(chart) {
  const { place } = chart;
  place.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (step === undefined && event.key !== "Escape") return;
    event.preventDefault();
    if (step === undefined) leave(chart);
    else move(chart, step);
  });
  place.addEventListener("blur", () => leave(chart));
}

function move(chart, step) {
  const { plot } = chart;
  if (plot === null) return;
  const [times] = chart.data;
  const last = times.length - 1;
  const index = Math.min(last, Math.max(0, (plot.cursor.idx ?? last) + step));
  plot.setCursor({ left: plot.valToPos(times[index], "x"), top: 0 }, true, true);
  chart.place.setAttribute("aria-valuemax", last);
  chart.place.setAttribute("aria-valuenow", index);
  chart.place.setAttribute("aria-valuetext", chart.spoken());
}

function leave({ plot, place }) {
  plot?.setCursor({ left: -10, top: -10 }, true, true); // uPlot's word for nowhere
  place.setAttribute("aria-valuenow", place.getAttribute("aria-valuemax"));
  place.setAttribute("aria-valuetext", "latest");
}
