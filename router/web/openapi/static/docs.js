// Shows the description by Swagger UI; no request goes to another host (validatorUrl).
SwaggerUIBundle({
  url: document.currentScript.dataset.description,
  dom_id: "#swagger-ui",
  deepLinking: true,
  displayRequestDuration: true,
  docExpansion: "none",
  filter: true,
  defaultModelsExpandDepth: 0,
  persistAuthorization: false,
  validatorUrl: null,
});
