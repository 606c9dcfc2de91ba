"""The API's description of itself: OpenAPI 3.1 at `/openapi.json`, and Swagger UI at `/docs`.

What a route takes and answers stands beside its view, as `@operation(...)`: methods and paths,
parameters, body and answers; the summary is the view's docstring. `document` puts all of it
together once, with the first request for it.
"""
