// Sets the stored theme before the first paint, so that the page does not flash in another theme.
try {
  var chosen = localStorage.getItem("crumb.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch (_) {
  // Storage can be disabled. The theme of the system is used then.
}
