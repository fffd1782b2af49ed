// Runs before the first paint: a choice of light or dark that was made here earlier must not flash.
try {
  var chosen = localStorage.getItem("crumb.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch (_) {
  // Storage may be forbidden; then the system decides.
}
