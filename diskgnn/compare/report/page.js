"use strict";
// Draws every figure at the width that its place has, and again when that changes or the page is printed.
const figures = JSON.parse(document.getElementById("figures").textContent);
const narrowPixels = 600;
const paper = { whole: 684, half: 330, height: 820, zoom: 0.72 }; // pixels that A4 and Letter have both

function draw(place, width) {
  const { wide, narrow } = figures[place.dataset.figure];
  const { data, layout } = structuredClone(width < narrowPixels && narrow ? narrow : wide);
  place.drawnWidth = width;
  Plotly.react(place, data, { ...layout, width }, { displayModeBar: false, staticPlot: false, doubleClick: false });
  return layout.height;
}

// On paper drawings are smaller than on screens, and none is taller than a page.
function drawForPaper(place) {
  const width = place.closest(".on-paper") ? paper.half : paper.whole;
  const height = draw(place, Math.floor(width / paper.zoom));
  const zoom = Math.min(paper.zoom, paper.height / height);
  if (zoom < paper.zoom) draw(place, Math.floor(width / zoom));
  place.style.setProperty("--zoom", zoom);
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
  places.forEach(drawForPaper);
});
window.addEventListener("afterprint", () => {
  printing = false;
  places.forEach((place) => draw(place, Math.floor(place.getBoundingClientRect().width)));
});
