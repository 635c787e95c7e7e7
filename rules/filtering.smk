rule heldout:
    """Draw the held-out documents, before any filter."""
    input:
        RUN.inputs("heldout"),
    output:
        RUN.stamp("heldout"),
    log:
        RUN.log("heldout"),
    benchmark:
        RUN.benchmark("heldout")
    conda:
        "../environment.yml"
    threads: RUN.threads("heldout")
    resources:
        **RUN.resources("heldout"),
    params:
        job=JOB,
    shell:
        "{params.job} --node heldout --work {wildcards.work} > {log:q} 2>&1"


rule filtering_scores:
    """Compute the scores of every document."""
    input:
        RUN.inputs("filtering.scores"),
    output:
        RUN.stamp("filtering.scores"),
    log:
        RUN.log("filtering.scores"),
    benchmark:
        RUN.benchmark("filtering.scores")
    conda:
        "../environment.yml"
    threads: RUN.threads("filtering.scores")
    resources:
        **RUN.resources("filtering.scores"),
    params:
        job=JOB,
    shell:
        "{params.job} --node filtering.scores --work {wildcards.work} > {log:q} 2>&1"


rule filtering:
    """Apply thresholds to scores."""
    input:
        RUN.inputs("filtering"),
    output:
        RUN.stamp("filtering"),
    log:
        RUN.log("filtering"),
    benchmark:
        RUN.benchmark("filtering")
    conda:
        "../environment.yml"
    threads: RUN.threads("filtering")
    resources:
        **RUN.resources("filtering"),
    params:
        job=JOB,
    shell:
        "{params.job} --node filtering --work {wildcards.work} > {log:q} 2>&1"
