rule reporting:
    """Write the report."""
    input:
        RUN.inputs("reporting"),
    output:
        RUN.stamp("reporting"),
    log:
        RUN.log("reporting"),
    benchmark:
        RUN.benchmark("reporting")
    conda:
        "../environment.yml"
    threads: RUN.threads("reporting")
    resources:
        **RUN.resources("reporting"),
    params:
        job=JOB,
    shell:
        "{params.job} --node reporting --work {wildcards.work} > {log:q} 2>&1"
