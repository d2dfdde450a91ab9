"use strict";
// Draws every figure at the width that its place has, and again when that changes or the page is printed.
const figures = JSON.parse(document.getElementById("figures").textContent);
const narrowPixels = 480; // as in the style sheet's container query
const printPixels = { whole: 660, half: 315 }; // A4 and Letter less their margins

function draw(place, width) {
  const { data, layout, narrow } = structuredClone(figures[place.dataset.figure]);
  const fitted = { ...layout, ...(width < narrowPixels ? narrow : {}), width };
  place.drawnWidth = width;
  Plotly.react(place, data, fitted, { displayModeBar: false, staticPlot: false, doubleClick: false });
}

const places = [...document.querySelectorAll(".drawing")];
let printing = false;
const watcher = new ResizeObserver((entries) => {
  if (printing) return;
  for (const { target } of entries) {
    const width = Math.floor(target.getBoundingClientRect().width);
    if (width > 0 && width !== target.drawnWidth) draw(target, width);
  }
});
places.forEach((place) => watcher.observe(place));

window.addEventListener("beforeprint", () => {
  printing = true;
  places.forEach((place) => draw(place, place.closest(".two") ? printPixels.half : printPixels.whole));
});
window.addEventListener("afterprint", () => {
  printing = false;
  places.forEach((place) => draw(place, Math.floor(place.getBoundingClientRect().width)));
});
