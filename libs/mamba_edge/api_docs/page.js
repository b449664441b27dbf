// The page of the API: Swagger UI over the document of this server, in the colours of the system.

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

const ui = SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  // The examples can be sent at once.
  tryItOutEnabled: true,
  defaultModelsExpandDepth: 0, // a hundred schemas, folded
  validatorUrl: null, // it would send the document away
  onComplete: () => {
    document.title = `${ui.specSelectors.info().get("title")}: API`;
  },
});
