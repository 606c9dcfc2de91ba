// The theme that the console keeps, ahead of the first paint: Swagger UI is dark by a class.
const dark = matchMedia("(prefers-color-scheme: dark)");
function choose() {
  const { classList, dataset } = document.documentElement;
  classList.toggle("dark-mode", dataset.theme === "dark" || (dataset.theme === "system" && dark.matches));
}
choose();
dark.addEventListener("change", choose);
